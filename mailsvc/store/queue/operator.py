"""The operator's view of the queue, and changes by hand: destinations, accounts and single emails. Not for use in loops.

The pause of a destination is a row of store/queue/holds. The pause of an account is a row too, and claimed mail of it is given back. The
pause of an email changes its rows in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims_sql import BY_INDEX
from mailsvc.store.sql import Columns, statement

DESTINATIONS = statement("mailsvc.store.queue", "destinations")

# One scan of the region's queue.
NAMES = "SELECT destination FROM queue WHERE region = %s UNION SELECT name FROM destinations WHERE region = %s AND name <> '*'"

PAUSES = "SELECT account_id, reason, least(until, '9999-12-31 23:59:59.999999+00') FROM account_pauses WHERE until > %s"
PAUSE_ACCOUNT = """
INSERT INTO account_pauses (account_id, reason, until) VALUES (%s, %s, %s)
ON CONFLICT (account_id) DO UPDATE SET reason = excluded.reason, until = excluded.until, automatic = false
"""
RESUME_ACCOUNT = "DELETE FROM account_pauses WHERE account_id = %s"
COUNT_AGAIN = "UPDATE accounts SET counted_from = %s WHERE id = %s"  # else, the same bounces would hold it again (store/people/abuse)
PAUSE_OF = "SELECT reason FROM account_pauses WHERE account_id = %s AND until > %s"

_WAITING = "lease IS NULL AND status <> 'scheduled'"
PAUSE_EMAIL = f"UPDATE queue SET next_at = %s, reason = %s WHERE email_id = %s AND {_WAITING}"
NOW_EMAIL = f"UPDATE queue SET next_at = %s WHERE email_id = %s AND next_at > %s AND {_WAITING}"
NOW_ACCOUNT = f"UPDATE queue SET next_at = %s WHERE account_id = %s AND next_at > %s AND {_WAITING}"
NOW_DESTINATION = f"""
UPDATE queue SET next_at = %s
WHERE region = %s AND (destination = %s OR split_part(destination, '/', 1) = %s) AND next_at > %s AND {_WAITING}
"""
# What still keeps waiting mail from being sent: of an email, an account, or destinations.
_OF = {
    "email": "email_id = %(key)s",
    "account": "account_id = %(key)s",
    "destination": "region = %(region)s AND (destination = ANY (%(key)s) OR split_part(destination, '/', 1) = ANY (%(key)s))",
}
HELD_BY = """
WITH waiting AS (SELECT DISTINCT account_id, region, destination FROM queue WHERE {of} AND lease IS NULL AND status <> 'scheduled')
SELECT 'account' AS kind, a.account_id::text AS name, a.reason FROM account_pauses a
WHERE a.until > %(now)s AND a.account_id IN (SELECT account_id FROM waiting)
UNION
SELECT 'destination', d.name, d.reason FROM waiting w
JOIN destinations d ON d.region = w.region AND d.name IN (w.destination, split_part(w.destination, '/', 1), '*') AND d.until > %(now)s
ORDER BY name LIMIT 10
"""
SENDING = "SELECT count(*) FROM queue WHERE email_id = %s AND lease IS NOT NULL"
_WAITING_RECIPIENT = Columns.named("recipient", "address", "destination", "status", "attempts", "reason", "next_at", "expires_at")
EMAIL = f"""
SELECT {_WAITING_RECIPIENT} FROM waiting_at(%s) w WHERE w.email_id = %s ORDER BY w.recipient
"""


@attrs.frozen
class DestinationView:
    """How many recipients are in each state, since when the oldest is waiting, and the hold that applies."""

    name: str
    queued: int
    delayed: int
    uncertain: int
    sending: int
    scheduled: int
    oldest: float | None
    next_at: datetime | None
    state: str | None
    reason: str | None
    until: datetime | None
    failures: int


@attrs.frozen
class Waiting:
    """A waiting recipient of an email."""

    recipient: int
    address: str
    destination: str
    status: str
    attempts: int
    reason: str | None
    next_at: datetime | None
    expires_at: datetime | None


class Operating:
    """The operator's changes to the tables queue and account_pauses."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def destinations(self, region: str, now: datetime, limit: int = 1000) -> list[DestinationView]:
        rows = await self._pool.rows(DESTINATIONS, {"region": region, "now": now, "limit": limit})
        return [_view(*row) for row in rows]

    async def destination_names(self, region: str) -> list[str]:
        """Destinations with queued mail or a hold, which may be over."""
        return [name for (name,) in await self._pool.rows(NAMES, (region, region))]

    async def email(self, email_id: UUID, now: datetime) -> list[Waiting]:
        return [Waiting(**_WAITING_RECIPIENT.read(row)) for row in await self._pool.rows(EMAIL, (now, email_id))]

    async def pauses(self, now: datetime) -> Mapping[UUID, tuple[str, datetime]]:
        """Paused accounts: why, and until when."""
        return {account: (reason, until) for account, reason, until in await self._pool.rows(PAUSES, (now,))}

    async def pause_of(self, account_id: UUID, now: datetime) -> str | None:
        """Why an account is paused; None if it is not."""
        rows = await self._pool.rows(PAUSE_OF, (account_id, now))
        return rows[0][0] if rows else None

    async def pause_account(self, account_id: UUID, reason: str, until: datetime, now: datetime, lines: Sequence[Line] = ()) -> None:
        await changed(self._pool, now.timestamp(), lines, PAUSE_ACCOUNT, (account_id, reason, until))

    async def resume_account(self, account_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> int:
        """Returns how many recipients are due again."""

        async def resume(tx: Transaction) -> int:
            await tx.run(RESUME_ACCOUNT, (account_id,))  # waits for processes that are giving mail back because of it
            await tx.run(COUNT_AGAIN, (now, account_id))
            await write(tx, lines, now.timestamp())
            return await tx.run(NOW_ACCOUNT, (now, account_id, now))

        return await self._pool.transact(resume)

    async def account_of(self, email_id: UUID) -> UUID | None:
        """The account of a queued email."""
        rows = await self._pool.rows("SELECT account_id FROM queue WHERE email_id = %s LIMIT 1", (email_id,))
        return rows[0][0] if rows else None

    async def record(self, line: Line, now: datetime) -> None:
        """Write to the audit log what changes no account alone, before it is done."""
        await self._pool.transact(lambda tx: write(tx, [line], now.timestamp()))

    async def pause_email(self, email_id: UUID, reason: str, until: datetime, now: datetime, lines: Sequence[Line] = ()) -> tuple[int, int]:
        """Returns how many recipients are paused, and how many are being sent to right now."""
        paused = await changed(self._pool, now.timestamp(), lines, PAUSE_EMAIL, (until, reason, email_id))
        [(sending,)] = await self._pool.rows(SENDING, (email_id,))
        return paused, sending

    async def retry_email(self, email_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> int:
        return await changed(self._pool, now.timestamp(), lines, NOW_EMAIL, (now, email_id, now))

    async def held_by(self, kind: str, key: UUID | Sequence[str], region: str, now: datetime) -> list[tuple[str, str, str]]:
        """The pauses and holds that still apply to waiting mail of an email, an account or destinations: kind, name and reason."""
        parameters = {"key": key if isinstance(key, UUID) else list(key), "region": region, "now": now}
        return [(of, name, reason) for of, name, reason in await self._pool.rows(HELD_BY.format(of=_OF[kind]), parameters)]

    async def retry_account(self, account_id: UUID, now: datetime) -> int:
        return await self._pool.run(NOW_ACCOUNT, (now, account_id, now))

    async def retry_destination(self, region: str, name: str, now: datetime) -> int:
        """For a provider: all of its destinations."""
        return await self._pool.run(BY_INDEX + NOW_DESTINATION, (now, region, name, name, now))


def _view(name: str, *rest: Any) -> DestinationView:
    queued, delayed, uncertain, sending, scheduled, oldest, *held = rest
    since = None if oldest is None else uuid7_seconds(UUID(oldest))
    return DestinationView(name, queued, delayed, uncertain, sending, scheduled, since, *held)
