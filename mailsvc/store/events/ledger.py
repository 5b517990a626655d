"""The event ledger's SQL: numbers committed events, counts them, and fills the outbox of webhooks, once for each event.

A transaction only takes events of the shards that it locked, so two ledgers never number the same account concurrently.
events/ledger runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from mailsvc.store.mail import idempotency
from mailsvc.store.mail.inserts import SHARDS
from mailsvc.store.mail.search import SERVICE
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import ONCE
from mailsvc.store.sql import statement

LOCKS = 0x6C656467  # first key of the advisory locks; the second key is the shard
LAG_MAX = 100_000  # fresh events that `lag` counts

# Locks all free shards for the next statement in the same transaction, which is planned only once.
FREE_SHARDS = Prepared(
    "free_shards",
    (),
    f"""
SELECT set_config('mailsvc.shards', coalesce(array_agg(shard)::text, '{{}}'), true), set_config('enable_seqscan', 'off', true), {ONCE}
FROM generate_series(0, {SHARDS - 1}) AS shard WHERE pg_try_advisory_xact_lock({LOCKS}, shard)
""",
)

# Only part of an email's history: these types are not public.
INTERNAL = "ARRAY['email.queued', 'email.canceled']"

_NUMBER = statement("mailsvc.store.events", "number", internal=INTERNAL, service=SERVICE)
# Separate from the statement that locks, so that it sees what the previous holders of the locks committed.
NUMBER = Prepared("number", ("bigint", "text[]"), _NUMBER, FREE_SHARDS)

LAG = "SELECT count(*), min(at) FROM (SELECT at FROM fresh_events LIMIT %s) AS f"


@attrs.frozen
class Lag:
    """Committed events without a number (counted up to a limit), and the age of the oldest in seconds."""

    events: int
    seconds: float


class EventLedger:
    """`outgoing` is called after each commit that filled the webhook outbox. `own_domains`: of the service's own emails."""

    def __init__(self, pool: Pool, outgoing: Callable[[], None] = lambda: None, own_domains: Sequence[str] = ()) -> None:
        self._pool = pool
        self._own_domains = list(own_domains)
        self._outgoing = outgoing

    async def number(self, limit: int) -> int:
        """Number at most `limit` events of free shards. Returns how many."""
        [(count, outgoing)] = await self._pool.rows(NUMBER, (limit, self._own_domains))
        if outgoing:
            self._outgoing()
        return int(count)

    async def lag(self, now: datetime) -> Lag:
        [(count, oldest)] = await self._pool.rows(LAG, (LAG_MAX,))
        return Lag(count, max(0.0, (now - oldest).total_seconds()) if oldest is not None else 0.0)

    async def sweep(self, now: datetime, limit: int) -> int:
        """Delete at most `limit` expired idempotency records. Returns how many."""
        return await idempotency.sweep(self._pool, now, limit)
