"""Source addresses in the database: which ones a region has, the block lists that have them, what new ones sent, and who uses which pool.

Which source a connection gets: delivery/connection/sources. Holds of destinations that no source may send to: store/queue/holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.store.people import audit
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

ABSENT = timedelta(minutes=3)  # a source that no process has named for so long does not count
_KEPT_DAYS = 60  # of what was sent, for people to look at
_UNCHECKED, _CHECKED = timedelta(days=1), timedelta(hours=1)

# In order, so that two processes with the same sources do not deadlock.
ANNOUNCE = """
INSERT INTO sources (region, address, pool, since, seen_at)
SELECT %s, a.address, a.pool, a.since, %s
FROM unnest(%s::text[], %s::text[], %s::date[]) AS a(address, pool, since) ORDER BY a.address
ON CONFLICT (region, address) DO UPDATE SET pool = excluded.pool, since = excluded.since, seen_at = excluded.seen_at
"""
_SOURCE = Columns.named("address", "pool", "since", "listed", "listed_at", "seen_at")
READ = f"SELECT {_SOURCE} FROM sources WHERE region = %s ORDER BY pool, address"  # noqa: S608

# A block of a day's emails. `granted` is what is left of it.
RESERVE = """
INSERT INTO source_days AS d (region, address, provider, day, taken, granted)
VALUES (%(region)s, %(address)s, %(provider)s, %(day)s, least(%(wanted)s, %(most)s), least(%(wanted)s, %(most)s))
ON CONFLICT (region, day, address, provider) DO UPDATE SET
    taken = greatest(d.taken, least(d.taken + %(wanted)s, %(most)s)),
    granted = greatest(0, least(%(wanted)s, %(most)s - d.taken))
RETURNING granted, taken
"""
GIVE_BACK = """
UPDATE source_days SET taken = greatest(0, taken - %s) WHERE region = %s AND day = %s AND address = %s AND provider = %s
"""
TAKEN = "SELECT address, provider, taken FROM source_days WHERE region = %s AND day = %s"

# Of several processes with the same source, one checks it: the others find the new time.
TAKE_CHECKS = """
UPDATE sources SET checked_at = %(now)s
WHERE region = %(region)s AND address = ANY(%(addresses)s)
AND (checked_at IS NULL OR checked_at <= CASE WHEN listed = '{}' THEN %(unlisted_before)s::timestamptz ELSE %(listed_before)s END)
RETURNING address, listed
"""
CHECKED = """
UPDATE sources SET listed = %(listed)s, checked_at = %(checked_at)s,
    listed_at = CASE WHEN %(listed)s = '{}'::text[] THEN NULL ELSE coalesce(listed_at, %(now)s) END
WHERE region = %(region)s AND address = %(address)s
"""

FORGET = """
WITH days AS (DELETE FROM source_days WHERE region = %(region)s AND day < %(day)s)
DELETE FROM sources WHERE region = %(region)s AND seen_at < %(seen)s
"""

POOLS = "SELECT id, pool FROM accounts WHERE pool IS NOT NULL UNION ALL SELECT id, pool FROM domains WHERE pool IS NOT NULL"
OWNERS = """
SELECT a.pool, 'account', a.name, a.name FROM accounts a WHERE a.pool IS NOT NULL
UNION ALL
SELECT d.pool, 'domain', d.name, a.name FROM domains d JOIN accounts a ON a.id = d.account_id WHERE d.pool IS NOT NULL
ORDER BY 1, 2, 3
"""
ACCOUNT_POOL = "UPDATE accounts SET pool = %s WHERE id = %s"
DOMAIN_POOL = "UPDATE domains SET pool = %s WHERE id = %s"


@attrs.frozen
class StoredSource:
    """A source address of a region. `since`: it warms up from that day. `listed`: the block lists that have it, `listed_at` since when."""

    address: str
    pool: str
    since: date | None
    listed: Sequence[str]
    listed_at: datetime | None
    seen_at: datetime


class SourceTable:
    """The sources of one region."""

    def __init__(self, pool: Pool, region: str) -> None:
        self._pool, self._region = pool, region

    async def announce(self, sources: Sequence[tuple[str, str, date | None]], now: datetime) -> None:
        """Record that this process has these sources: address, pool, first day of the warm-up."""
        addresses, pools, since = [list(column) for column in zip(*sources, strict=True)] if sources else ([], [], [])
        await self._pool.run(ANNOUNCE, (self._region, now, addresses, pools, since))

    async def read(self) -> list[StoredSource]:
        return [StoredSource(**_SOURCE.read(row)) for row in await self._pool.rows(READ, (self._region,))]

    # Warm-up

    async def reserve(self, address: str, provider: str, day: date, most: int, wanted: int) -> tuple[int, int]:
        """Reserve up to `wanted` of the `most` emails of a day. Returns how many, and how many are reserved by now."""
        values = {"region": self._region, "address": address, "provider": provider, "day": day, "most": most, "wanted": wanted}
        [(granted, taken)] = await self._pool.rows(RESERVE, values)
        return granted, taken

    async def give_back(self, address: str, provider: str, day: date, count: int) -> None:
        """Reserved emails that were not sent."""
        await self._pool.run(GIVE_BACK, (count, self._region, day, address, provider))

    async def taken(self, day: date) -> Mapping[tuple[str, str], int]:
        """The reserved emails of a day, by address and provider."""
        return {(address, provider): taken for address, provider, taken in await self._pool.rows(TAKEN, (self._region, day))}

    async def forget(self, now: datetime) -> int:
        """Delete old counts, and sources that no process has had for as long."""
        before = now - timedelta(days=_KEPT_DAYS)
        return await self._pool.run(FORGET, {"region": self._region, "day": before.date(), "seen": before})

    # Block lists

    async def take_checks(self, addresses: Sequence[str], now: datetime) -> Mapping[str, Sequence[str]]:
        """Those to look up now, with the lists that had them: daily, and hourly while they are on one. No other process gets them."""
        values = {"region": self._region, "addresses": list(addresses), "now": now}
        rows = await self._pool.rows(TAKE_CHECKS, values | {"unlisted_before": now - _UNCHECKED, "listed_before": now - _CHECKED})
        return dict(rows)

    async def checked(self, address: str, listed: Sequence[str], now: datetime, *, complete: bool) -> None:
        """Store what the lists answered. Unless all did, they are asked again soon."""
        values = {"region": self._region, "address": address, "listed": list(listed), "now": now}
        await self._pool.run(CHECKED, values | {"checked_at": now if complete else None})


class PoolTable:
    """The pools of accounts and domains."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self) -> Mapping[UUID, str]:
        """Accounts and domains with a pool, by ID."""
        return dict(await self._pool.rows(POOLS))

    async def owners(self) -> list[tuple[str, str, str, str]]:
        """For people: the pool, "account" or "domain", its name, and the name of the account."""
        return [(pool, kind, name, account) for pool, kind, name, account in await self._pool.rows(OWNERS)]

    async def assign_account(self, account_id: UUID, pool: str | None, lines: Sequence[audit.Line], now: float) -> None:
        """With lines for the audit log. None: as the settings say."""
        await audit.changed(self._pool, now, lines, ACCOUNT_POOL, (pool, account_id))

    async def assign_domain(self, domain_id: UUID, pool: str | None, lines: Sequence[audit.Line], now: float) -> None:
        """The same for a domain."""
        await audit.changed(self._pool, now, lines, DOMAIN_POOL, (pool, domain_id))
