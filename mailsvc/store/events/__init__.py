"""SQL for events, the event ledger, webhooks and their outbox, suppressions, asynchronous bounces, and counts."""
