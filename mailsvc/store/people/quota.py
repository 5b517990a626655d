"""Used quotas of accounts, one row for each period, leased in blocks to the processes that accept mail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.people.accounts import ADMINS
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns, statement

Period = Literal["day", "month"]

# The row is of an earlier period, or further ahead than a process's clock can be behind. Then the clock was set back.
_OTHER = "(q.starts < excluded.starts OR q.starts > %(latest)s)"
LEASE = statement("mailsvc.store.people", "lease_quota", other=_OTHER)
# Ordered to avoid deadlocks. Leases of a past period are dropped.
GIVE_BACK = """
WITH given AS (
    SELECT * FROM unnest(%s::uuid[], %s::text[], %s::date[], %s::bigint[]) AS g(account_id, period, starts, count)
), locked AS MATERIALIZED (
    SELECT q.account_id, q.period, g.count FROM quota q JOIN given g USING (account_id, period, starts) ORDER BY 1, 2 FOR UPDATE OF q
)
UPDATE quota q SET taken = greatest(0, q.taken - l.count) FROM locked l WHERE q.account_id = l.account_id AND q.period = l.period
"""
# Without a row: what a lease would begin with (lease_quota.sql).
TAKEN = """
SELECT period, taken FROM quota WHERE account_id = %(account_id)s AND (period, starts) IN (('day', %(day)s), ('month', %(month)s))
UNION ALL
SELECT p.period, (
    SELECT coalesce(sum(count), 0)::bigint FROM rollups
    WHERE account_id = %(account_id)s AND hour >= p.starts::timestamp AT TIME ZONE 'UTC' AND type = 'email.sent'
)
FROM (VALUES ('day', %(day)s::date), ('month', %(month)s::date)) p(period, starts)
WHERE NOT EXISTS (SELECT FROM quota q WHERE q.account_id = %(account_id)s AND q.period = p.period)
"""
_NEAR = Columns.of(
    account_id="q.account_id",
    number="a.number",
    name="a.name",
    period="q.period",
    starts="q.starts",
    taken="q.taken",
    most="q.most",
    warned="q.warned",
    admins=ADMINS,
    plan="a.plan",
    ramp="a.ramp",
)
NEAR = f"""
SELECT {_NEAR}
FROM quota q JOIN accounts a ON a.id = q.account_id
WHERE (q.period, q.starts) IN (('day', %s), ('month', %s)) AND q.taken * 100 >= q.most * %s
ORDER BY q.account_id, q.period
"""
WARNED = "UPDATE quota SET warned = greatest(warned, %s) WHERE account_id = %s AND period = %s AND starts = %s"
FORGET = "DELETE FROM quota WHERE account_id = %s AND period = ANY (%s)"
PLAN = "UPDATE accounts SET plan = %s WHERE id = %s"


@attrs.frozen
class Near:
    """An account that has used most or all of a quota. `admins`: the addresses to notify.

    `most`: the limit as of the latest lease. `plan`, `ramp`: the limit may be another one since.
    """

    account_id: UUID
    number: int
    name: str
    period: Period
    starts: date
    taken: int
    most: int
    warned: int
    admins: tuple[str, ...] = attrs.field(converter=tuple)
    plan: str | None
    ramp: int | None


@attrs.define(eq=False)
class Quota:
    pool: Pool

    async def lease(
        self, account_id: UUID, period: Period, starts: date, most: int, need: int, wanted: int, latest: date | None = None
    ) -> tuple[int, int]:
        """Lease up to `wanted` recipients, or none if fewer than `need` are left. Returns that number and the total of all leases.

        `latest`: the period that has begun for a process whose clock is ahead of this one's; by default the same.
        """
        given = {"account_id": account_id, "period": period, "starts": starts, "most": most, "need": need, "wanted": wanted}
        given["latest"] = latest or starts
        [(granted, taken)] = await self.pool.rows(LEASE, given)
        return int(granted), int(taken)

    async def give_back(self, parts: Sequence[tuple[UUID, Period, date, int]]) -> None:
        """Return unused recipients of accounts and periods."""
        await self.pool.run(GIVE_BACK, tuple(list(column) for column in zip(*parts, strict=True)))

    async def taken(self, account_id: UUID, day: date, month: date) -> dict[Period, int]:
        """The leased recipients in these periods. Without a lease ever, what was sent; with earlier ones only, the period is left out."""
        return dict(await self.pool.rows(TAKEN, {"account_id": account_id, "day": day, "month": month}))

    async def near(self, day: date, month: date, percent: int) -> Sequence[Near]:
        """Accounts that have used at least `percent` of a quota."""
        return [Near(**_NEAR.read(row)) for row in await self.pool.rows(NEAR, (day, month, percent))]

    async def warned(self, near: Near, percent: int) -> None:
        """Record that the admins were warned in this period."""
        await self.pool.run(WARNED, (percent, near.account_id, near.period, near.starts))

    async def plan(
        self, account_id: UUID, plan: str | None, now: float = 0.0, lines: Sequence[Line] = (), uncounted: Sequence[Period] = ()
    ) -> None:
        """Change an account's plan. Its usage stays.

        `uncounted`: periods that had no limit until now, so that nobody counted. Their count begins with what was sent in them.
        """

        async def change(tx: Transaction) -> None:
            if await tx.run(PLAN, (plan, account_id)):
                await tx.run(FORGET, (account_id, list(uncounted)))
                await write(tx, lines, now)

        await self.pool.transact(change)
