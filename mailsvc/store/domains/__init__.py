"""SQL for sending domains: their DKIM keys, checks, claims and history."""
