"""Events in SQL: written with each change, numbered by the ledger, and put into the webhook outbox."""
