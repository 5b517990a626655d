"""Sends events to customers' endpoints, signed, until the endpoint accepts them or the retry schedule ends.

The event ledger fills the outbox (store/events/outbox). `sender` claims due messages and posts them through net/fetch, `signature` signs
them, `concurrency` limits connections, `response` decides what follows, `failure_notices` warns accounts by mail.
"""
