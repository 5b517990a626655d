"""SQL for sending domains: their DKIM keys, checks, claims, history and reports."""
