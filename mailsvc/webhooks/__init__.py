"""THE WORD BACK: tells customers' endpoints what happened, signed, until they have taken it or the schedule ends.

The ledger puts numbered events into the outbox; this room takes from there what is due (post), signs it (signature), sends it by
the guarded fetcher and judges the answer (verdict). Accounts are told by mail of endpoints that fail (notice).
"""
