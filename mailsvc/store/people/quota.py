"""Used quotas of accounts, one row for each period, leased in blocks to the processes that accept mail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool

Period = Literal["day", "month"]

# A new period starts at zero; a process whose clock is behind leases from the new one. An account without a row starts with what it sent in
# this period.
LEASE = """
INSERT INTO quota AS q (account_id, period, starts, most, taken, granted)
SELECT %(account_id)s, %(period)s, %(starts)s, %(most)s, f.used + f.granted, f.granted
FROM (
    SELECT u.used, CASE WHEN %(most)s - u.used >= %(need)s THEN least(%(wanted)s, %(most)s - u.used) ELSE 0 END AS granted
    FROM (
        SELECT CASE WHEN EXISTS (SELECT FROM quota WHERE account_id = %(account_id)s AND period = %(period)s) THEN 0 ELSE (
            SELECT coalesce(sum(count), 0) FROM rollups
            WHERE account_id = %(account_id)s AND hour >= %(starts)s::date::timestamp AT TIME ZONE 'UTC' AND type = 'email.sent'
        ) END AS used
    ) u
) f
ON CONFLICT (account_id, period) DO UPDATE SET
    starts = greatest(q.starts, excluded.starts),
    most = excluded.most,
    warned = CASE WHEN q.starts < excluded.starts THEN 0 ELSE q.warned END,
    taken = CASE
        WHEN q.starts < excluded.starts THEN CASE WHEN %(most)s >= %(need)s THEN least(%(wanted)s, %(most)s) ELSE 0 END
        ELSE q.taken + CASE WHEN %(most)s - q.taken >= %(need)s THEN least(%(wanted)s, %(most)s - q.taken) ELSE 0 END
    END,
    granted = CASE
        WHEN q.starts < excluded.starts THEN CASE WHEN %(most)s >= %(need)s THEN least(%(wanted)s, %(most)s) ELSE 0 END
        ELSE CASE WHEN %(most)s - q.taken >= %(need)s THEN least(%(wanted)s, %(most)s - q.taken) ELSE 0 END
    END
RETURNING granted, taken
"""
# Ordered to avoid deadlocks. Leases of a past period are dropped.
GIVE_BACK = """
WITH given AS (
    SELECT * FROM unnest(%s::uuid[], %s::text[], %s::date[], %s::bigint[]) AS g(account_id, period, starts, count)
), locked AS MATERIALIZED (
    SELECT q.account_id, q.period, g.count FROM quota q JOIN given g USING (account_id, period, starts) ORDER BY 1, 2 FOR UPDATE OF q
)
UPDATE quota q SET taken = greatest(0, q.taken - l.count) FROM locked l WHERE q.account_id = l.account_id AND q.period = l.period
"""
TAKEN = "SELECT period, taken FROM quota WHERE account_id = %s AND (period, starts) IN (('day', %s), ('month', %s))"
NEAR = """
SELECT q.account_id, a.number, a.name, q.period, q.starts, q.taken, q.most, q.warned, coalesce(
    (SELECT array_agg(u.email ORDER BY u.email) FROM members m JOIN users u ON u.id = m.user_id
     WHERE m.account_id = q.account_id AND m.role = 'admin'),
    array_remove(ARRAY[a.notify], NULL)
)
FROM quota q JOIN accounts a ON a.id = q.account_id
WHERE (q.period, q.starts) IN (('day', %s), ('month', %s)) AND q.taken * 100 >= q.most * %s
ORDER BY q.account_id, q.period
"""
WARNED = "UPDATE quota SET warned = greatest(warned, %s) WHERE account_id = %s AND period = %s AND starts = %s"
PLAN = "UPDATE accounts SET plan = %s WHERE id = %s"


@attrs.frozen
class Near:
    """An account that has used most or all of a quota. `admins`: the addresses to notify."""

    account_id: UUID
    number: int
    name: str
    period: Period
    starts: date
    taken: int
    most: int
    warned: int
    admins: tuple[str, ...] = attrs.field(converter=tuple)


@attrs.define(eq=False)
class Quota:
    pool: Pool

    async def lease(self, account_id: UUID, period: Period, starts: date, most: int, need: int, wanted: int) -> tuple[int, int]:
        """Lease up to `wanted` recipients, or none if fewer than `need` are left. Returns that number and the total of all leases."""
        given = {"account_id": account_id, "period": period, "starts": starts, "most": most, "need": need, "wanted": wanted}
        [(granted, taken)] = await self.pool.rows(LEASE, given)
        return int(granted), int(taken)

    async def give_back(self, parts: Sequence[tuple[UUID, Period, date, int]]) -> None:
        """Return unused recipients of accounts and periods."""
        await self.pool.run(GIVE_BACK, tuple(list(column) for column in zip(*parts, strict=True)))

    async def taken(self, account_id: UUID, day: date, month: date) -> dict[Period, int]:
        """The leased recipients in these periods; periods without any are left out."""
        return dict(await self.pool.rows(TAKEN, (account_id, day, month)))

    async def near(self, day: date, month: date, percent: int) -> Sequence[Near]:
        """Accounts that have used at least `percent` of a quota."""
        return [Near(*row) for row in await self.pool.rows(NEAR, (day, month, percent))]

    async def warned(self, near: Near, percent: int) -> None:
        """Record that the admins were warned in this period."""
        await self.pool.run(WARNED, (percent, near.account_id, near.period, near.starts))

    async def plan(self, account_id: UUID, plan: str | None) -> None:
        """Change an account's plan. Its usage stays."""
        await self.pool.run(PLAN, (plan, account_id))
