"""The count of requests that several processes share: an account's limit of each second, given out in blocks."""

from __future__ import annotations

from uuid import UUID

from mailsvc.store.pool import Pool

# The second is the database's, so that processes whose clocks differ count in the same one.
LEASE = """
INSERT INTO rate_windows AS r (account_id, second, taken, granted)
SELECT %(account_id)s, floor(extract(epoch FROM clock_timestamp())), least(%(wanted)s, %(limit)s), least(%(wanted)s, %(limit)s)
ON CONFLICT (account_id) DO UPDATE SET
    second = excluded.second,
    taken = CASE WHEN r.second = excluded.second THEN greatest(r.taken, least(r.taken + %(wanted)s, %(limit)s)) ELSE excluded.taken END,
    granted = CASE WHEN r.second = excluded.second THEN greatest(0, least(%(wanted)s, %(limit)s - r.taken)) ELSE excluded.granted END
RETURNING granted, greatest(0, %(limit)s - taken)
"""


class RateWindows:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def lease(self, account_id: UUID, limit: int, wanted: int) -> tuple[int, int]:
        """How many of the `wanted` requests of this second the account may still make here, and how many elsewhere after that."""
        [(granted, left)] = await self._pool.rows(LEASE, {"account_id": account_id, "wanted": wanted, "limit": limit})
        return granted, left
