"""The event ledger's SQL: numbers committed events, counts them, and fills the outbox of webhooks, once for each event.

A transaction only takes events of the shards that it locked, so two ledgers never number the same account concurrently.
events/ledger runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import attrs

from mailsvc.store.mail import idempotency
from mailsvc.store.mail.inserts import SHARDS
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import ONCE

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

# IDs grow with time: within a batch, numbers follow the time of events, across batches the order of commits.
_NUMBER = f"""
WITH taken AS MATERIALIZED (
    DELETE FROM fresh_events WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM fresh_events WHERE shard = ANY (current_setting('mailsvc.shards')::smallint[]) LIMIT $1
    ))
    RETURNING account_id, email_id, event_id, domain_id, type, coalesce(kind, type) AS kind, weight, at
), public AS (
    SELECT * FROM taken WHERE type <> ALL ({INTERNAL})
), grown AS (
    INSERT INTO event_sequences AS s (account_id, last)
    SELECT account_id, count(*) FROM public GROUP BY account_id ORDER BY account_id
    ON CONFLICT (account_id) DO UPDATE SET last = s.last + excluded.last
    RETURNING account_id, last
), numbered AS (
    INSERT INTO event_log (account_id, sequence, email_id, event_id)
    SELECT t.account_id, g.last + 1 - row_number() OVER (PARTITION BY t.account_id ORDER BY t.event_id DESC), t.email_id, t.event_id
    FROM public t JOIN grown g USING (account_id)
), counted AS (
    INSERT INTO rollups AS r (account_id, hour, domain_id, type, count)
    SELECT account_id, date_trunc('hour', at, 'UTC'), domain_id, kind, sum(weight) FROM taken GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (account_id, hour, domain_id, type) DO UPDATE SET count = r.count + excluded.count
), told AS (
    INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at)
    SELECT t.account_id, w.id, t.event_id, t.email_id, t.type, t.at
    FROM public t CROSS JOIN LATERAL (
        SELECT id FROM webhooks
        WHERE account_id = t.account_id AND status = 'enabled' AND t.type = ANY (events) AND id < t.event_id OFFSET 0
    ) w
    RETURNING webhook_id, event_id, account_id, email_id, created_at
), outgoing AS (
    INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at)
    SELECT webhook_id, event_id, account_id, email_id, created_at FROM told
    RETURNING 1
)
SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM outgoing)
"""
# Separate from the statement that locks, so that it sees what the previous holders of the locks committed.
NUMBER = Prepared("number", ("bigint",), _NUMBER, FREE_SHARDS)

LAG = "SELECT count(*), min(at) FROM (SELECT at FROM fresh_events LIMIT %s) AS f"


@attrs.frozen
class Lag:
    """Committed events without a number (counted up to a limit), and the age of the oldest in seconds."""

    events: int
    seconds: float


class EventLedger:
    """`outgoing` is called after each commit that filled the webhook outbox."""

    def __init__(self, pool: Pool, outgoing: Callable[[], None] = lambda: None) -> None:
        self._pool = pool
        self._outgoing = outgoing

    async def number(self, limit: int) -> int:
        """Number at most `limit` events of free shards. Returns how many."""
        [(count, outgoing)] = await self._pool.rows(NUMBER, (limit,))
        if outgoing:
            self._outgoing()
        return int(count)

    async def lag(self, now: datetime) -> Lag:
        [(count, oldest)] = await self._pool.rows(LAG, (LAG_MAX,))
        return Lag(count, max(0.0, (now - oldest).total_seconds()) if oldest is not None else 0.0)

    async def sweep(self, now: datetime, limit: int) -> int:
        """Delete at most `limit` expired idempotency records. Returns how many."""
        return await idempotency.sweep(self._pool, now, limit)
