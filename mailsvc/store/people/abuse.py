"""Rates of accounts from the hourly counts, automatic holds of their mail, the ramps of new accounts, and trust.

What follows from the rates: accounts/abuse. A hold is a row of account_pauses, as the operator's pauses are (store/queue/operator).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.people.accounts import ADMINS
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.holds import FOREVER
from mailsvc.store.sql import Columns

_COUNTS = Columns.of(
    account_id="a.id",
    number="a.number",
    ramp="a.ramp",
    delivered="r.delivered",
    bounced="r.bounced",
    permanent="r.permanent",
    complained="r.complained",
    lately="r.lately",
)
_ROLLUPS = """CROSS JOIN LATERAL (
    SELECT coalesce(sum(count) FILTER (WHERE type = 'email.delivered'), 0)::bigint AS delivered,
           coalesce(sum(count) FILTER (WHERE type LIKE 'email.bounced.%%'), 0)::bigint AS bounced,
           coalesce(sum(count) FILTER (WHERE type = 'email.bounced.permanent'), 0)::bigint AS permanent,
           coalesce(sum(count) FILTER (WHERE type = 'email.complained'), 0)::bigint AS complained,
           coalesce(sum(count) FILTER (WHERE type = 'email.delivered' AND hour >= a.ramp_at), 0)::bigint AS lately
    FROM rollups WHERE account_id = a.id AND hour >= greatest(%(since)s, a.counted_from)
) r"""
_FREE = "a.trusted_at IS NULL AND NOT EXISTS (SELECT FROM account_pauses p WHERE p.account_id = a.id AND p.until > %(now)s)"
# Of accounts that are neither trusted nor paused: those with bounces or complaints lately; those whose ramp can be raised.
SUSPECTS = f"""
SELECT {_COUNTS}
FROM (
    SELECT DISTINCT account_id FROM rollups WHERE hour >= %(lately)s AND type IN ('email.bounced.permanent', 'email.complained')
) c JOIN accounts a ON a.id = c.account_id {_ROLLUPS}
WHERE {_FREE}
"""
RAMPED = f"""
SELECT {_COUNTS}
FROM accounts a {_ROLLUPS}
WHERE a.ramp IS NOT NULL AND a.ramp_at <= %(before)s AND {_FREE}
"""
RAISE = "UPDATE accounts SET ramp = %s, ramp_at = %s WHERE id = %s AND ramp = %s"
# A pause that is in force stays as it is.
HOLD = """
INSERT INTO account_pauses AS p (account_id, reason, until, automatic, held_at, notified) VALUES (%s, %s, %s, true, %s, false)
ON CONFLICT (account_id) DO UPDATE
SET reason = excluded.reason, until = excluded.until, automatic = true, held_at = excluded.held_at, notified = false
WHERE p.until <= excluded.held_at
"""
_HELD = Columns.of(
    account_id="p.account_id",
    number="a.number",
    name="a.name",
    reason="p.reason",
    at="p.held_at",
    notified="p.notified",
    admins=ADMINS,
)
HELD = f"""
SELECT {_HELD}
FROM account_pauses p JOIN accounts a ON a.id = p.account_id WHERE p.automatic AND p.until > %s ORDER BY p.held_at
"""
NOTIFIED = "UPDATE account_pauses SET notified = true WHERE account_id = %s AND held_at = %s"
RAMPS = "SELECT count(*) FROM accounts WHERE ramp IS NOT NULL"
TRUST = """
UPDATE accounts SET trusted_at = CASE WHEN %(trusted)s THEN coalesce(trusted_at, %(now)s) END,
                    ramp = CASE WHEN NOT %(trusted)s THEN ramp END
WHERE id = %(id)s
"""


@attrs.frozen
class Counts:
    """Recipients of one account over the window. `permanent` ones are among the `bounced`.

    `lately`: delivered since its ramp was last raised, within the window.
    """

    account_id: UUID
    number: int
    ramp: int | None
    delivered: int
    bounced: int
    permanent: int
    complained: int
    lately: int = 0


@attrs.frozen
class Held:
    """An account whose mail is held automatically. `admins`: the addresses to notify."""

    account_id: UUID
    number: int
    name: str
    reason: str
    at: datetime
    notified: bool
    admins: tuple[str, ...] = attrs.field(converter=tuple)


@attrs.define(eq=False)
class AbuseStore:
    pool: Pool

    async def suspects(self, since: datetime, lately: datetime, now: datetime) -> Sequence[Counts]:
        """Accounts with permanent bounces or complaints since `lately`, with their counts since `since`."""
        return [Counts(**_COUNTS.read(row)) for row in await self.pool.rows(SUSPECTS, {"since": since, "lately": lately, "now": now})]

    async def ramped(self, since: datetime, before: datetime, now: datetime) -> Sequence[Counts]:
        """Accounts whose ramp was last raised before then."""
        return [Counts(**_COUNTS.read(row)) for row in await self.pool.rows(RAMPED, {"since": since, "before": before, "now": now})]

    async def raise_ramp(self, account_id: UUID, former: int, ramp: int | None, now: datetime) -> None:
        await self.pool.run(RAISE, (ramp, now, account_id, former))

    async def hold(self, account_id: UUID, reason: str, now: datetime, line: Line) -> bool:
        """Hold an account's mail; whether it was not paused already."""

        async def hold(tx: Transaction) -> bool:
            held = await tx.run(HOLD, (account_id, reason, FOREVER, now)) > 0
            await write(tx, [line] if held else [], now.timestamp())
            return held

        return await self.pool.transact(hold)

    async def held(self, now: datetime) -> Sequence[Held]:
        """Accounts whose mail is held automatically, the longest-held first."""
        return [Held(**_HELD.read(row)) for row in await self.pool.rows(HELD, (now,))]

    async def notified(self, held: Held) -> None:
        """Record that people were notified of this hold."""
        await self.pool.run(NOTIFIED, (held.account_id, held.at))

    async def ramps(self) -> int:
        """How many accounts have a ramp."""
        [(count,)] = await self.pool.rows(RAMPS)
        return int(count)

    async def trust(self, account_id: UUID, trusted: bool, now: datetime, lines: Sequence[Line]) -> None:
        """Trust an account, which ends its ramp, or stop trusting it, which does not bring the ramp back."""

        async def change(tx: Transaction) -> None:
            await tx.run(TRUST, {"trusted": trusted, "now": now, "id": account_id})
            await write(tx, lines, now.timestamp())

        await self.pool.transact(change)
