"""The books in SQL: committed events get their account's next numbers and are counted, each exactly once.

One transaction takes events of the shards whose locks it got, so that two ledgers never number the same account at once.
Who calls it, and when: mailsvc/ledger.
"""

from __future__ import annotations

from datetime import datetime

import attrs

from mailsvc.store import idempotency
from mailsvc.store.inserts import SHARDS
from mailsvc.store.pool import Pool, Transaction

LOCKS = 0x6C656467  # the first half of an advisory lock's name; the second one is the shard
LOOK = 100_000  # fresh events that `lag` counts at most

TRY_SHARDS = "SELECT shard FROM generate_series(0, %s) AS shard WHERE pg_try_advisory_xact_lock(%s, shard)"

# Ids grow with time, so within a batch the numbers of an account follow what happened. Across batches they follow the commits.
NUMBER = """
WITH taken AS MATERIALIZED (
    DELETE FROM fresh_events WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM fresh_events WHERE shard = ANY (%s::smallint[]) LIMIT %s
    ))
    RETURNING account_id, email_id, event_id, domain_id, coalesce(kind, type) AS kind, weight, at
), grown AS (
    INSERT INTO event_sequences AS s (account_id, last)
    SELECT account_id, count(*) FROM taken GROUP BY account_id ORDER BY account_id
    ON CONFLICT (account_id) DO UPDATE SET last = s.last + excluded.last
    RETURNING account_id, last
), numbered AS (
    INSERT INTO event_log (account_id, sequence, email_id, event_id)
    SELECT t.account_id, g.last + 1 - row_number() OVER (PARTITION BY t.account_id ORDER BY t.event_id DESC), t.email_id, t.event_id
    FROM taken t JOIN grown g USING (account_id)
), counted AS (
    INSERT INTO rollups AS r (account_id, hour, domain_id, type, count)
    SELECT account_id, date_trunc('hour', at, 'UTC'), domain_id, kind, sum(weight) FROM taken GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (account_id, hour, domain_id, type) DO UPDATE SET count = r.count + excluded.count
)
SELECT count(*) FROM taken
"""

LAG = "SELECT count(*), min(at) FROM (SELECT at FROM fresh_events LIMIT %s) AS f"


@attrs.frozen
class Lag:
    """How many committed events have no number yet (counted up to a limit), and for how many seconds the oldest has had none."""

    events: int
    seconds: float


class Books:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def number(self, limit: int) -> int:
        """Number at most `limit` events of the shards that nobody else is at; how many there were."""

        async def number(tx: Transaction) -> int:
            shards = [shard for (shard,) in await tx.rows(TRY_SHARDS, (SHARDS - 1, LOCKS))]
            if not shards:
                return 0
            # A statement of its own: it sees what the former holders of these locks committed.
            [(count,)] = await tx.rows(NUMBER, (shards, limit))
            return int(count)

        return await self._pool.transact(number)

    async def lag(self, now: datetime) -> Lag:
        [(count, oldest)] = await self._pool.rows(LAG, (LOOK,))
        return Lag(count, max(0.0, (now - oldest).total_seconds()) if oldest is not None else 0.0)

    async def sweep(self, now: datetime, limit: int) -> int:
        """Remove at most `limit` answers to repeated requests that have expired; how many there were."""
        return await idempotency.sweep(self._pool, now, limit)
