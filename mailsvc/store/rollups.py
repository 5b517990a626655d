"""Counts by the hour, as the ledger folds them: how many events of each type, of an account and of each of its domains."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.store.pool import Pool

TOTALS = """
SELECT type, sum(count)::bigint FROM rollups
WHERE account_id = %s AND hour >= %s AND hour < %s AND (%s::uuid IS NULL OR domain_id = %s) GROUP BY type
"""
SERIES = """
SELECT date_bin(%s, hour, %s), type, sum(count)::bigint FROM rollups
WHERE account_id = %s AND hour >= %s AND hour < %s AND (%s::uuid IS NULL OR domain_id = %s) GROUP BY 1, 2 ORDER BY 1, 2
"""
BY_DOMAIN = """
SELECT domain_id, type, sum(count)::bigint FROM rollups
WHERE account_id = %s AND hour >= %s AND hour < %s GROUP BY 1, 2 ORDER BY 1, 2
"""


@attrs.frozen
class Count:
    at: datetime
    type: str
    count: int


class Rollups:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def totals(self, account_id: UUID, since: datetime, until: datetime, domain_id: UUID | None = None) -> Mapping[str, int]:
        """By type of event."""
        return dict(await self._pool.rows(TOTALS, (account_id, since, until, domain_id, domain_id)))

    async def series(self, account_id: UUID, since: datetime, until: datetime, seconds: int, domain_id: UUID | None = None) -> list[Count]:
        """In steps of so many seconds from `since` on; a step without events is left out."""
        rows = await self._pool.rows(SERIES, (timedelta(seconds=seconds), since, account_id, since, until, domain_id, domain_id))
        return [Count(*row) for row in rows]

    async def by_domain(self, account_id: UUID, since: datetime, until: datetime) -> Mapping[UUID, Mapping[str, int]]:
        found: dict[UUID, dict[str, int]] = {}
        for domain_id, type_, count in await self._pool.rows(BY_DOMAIN, (account_id, since, until)):
            found.setdefault(domain_id, {})[type_] = count
        return found
