"""The shared count of requests for the rate limit of accounts, in windows of one second."""

from __future__ import annotations

from uuid import UUID

from mailsvc.store.postgres.pool import Pool

# The second comes from the database's clock, so that all processes use the same one. A statement that waited for another may have an
# older second; it counts in the newer one. A second far in the future predates a clock change.
LEASE = """
INSERT INTO rate_windows AS r (account_id, second, taken, granted)
SELECT %(account_id)s, floor(extract(epoch FROM clock_timestamp())), least(%(wanted)s, %(limit)s), least(%(wanted)s, %(limit)s)
ON CONFLICT (account_id) DO UPDATE SET
    second = CASE WHEN r.second - excluded.second BETWEEN 0 AND 5 THEN r.second ELSE excluded.second END,
    taken = CASE WHEN r.second - excluded.second BETWEEN 0 AND 5
        THEN greatest(r.taken, least(r.taken + %(wanted)s, %(limit)s)) ELSE excluded.taken END,
    granted = CASE WHEN r.second - excluded.second BETWEEN 0 AND 5
        THEN greatest(0, least(%(wanted)s, %(limit)s - r.taken)) ELSE excluded.granted END
RETURNING granted, greatest(0, %(limit)s - taken), second
"""


class RateWindows:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def lease(self, account_id: UUID, limit: int, wanted: int) -> tuple[int, int, int]:
        """The number of the `wanted` requests within the limit, how many more are left, and the second."""
        [(granted, left, second)] = await self._pool.rows(LEASE, {"account_id": account_id, "wanted": wanted, "limit": limit})
        return granted, left, second
