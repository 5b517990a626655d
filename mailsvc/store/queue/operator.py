"""What the operator sees of the queue and changes in it by hand: destinations, accounts, single emails. For people, not for loops.

The pause of a destination is a row of store/queue/holds. The pause of an account is a row too; what is claimed of it goes back. The pause
of an email moves its few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims_sql import BY_INDEX

# One look over the region's queue. A destination with nothing waiting is there as long as it is held.
DESTINATIONS = """
WITH counted AS (
    SELECT destination AS name,
           count(*) FILTER (WHERE lease IS NULL AND status = 'queued') AS queued,
           count(*) FILTER (WHERE lease IS NULL AND status = 'delayed') AS delayed,
           count(*) FILTER (WHERE lease IS NULL AND status = 'uncertain') AS uncertain,
           count(*) FILTER (WHERE lease IS NOT NULL) AS sending,
           count(*) FILTER (WHERE status = 'scheduled') AS scheduled,
           min(email_id::text COLLATE "C") FILTER (WHERE status <> 'scheduled') AS oldest,
           min(next_at) FILTER (WHERE lease IS NULL AND status <> 'scheduled') AS next_at,
           max(reason COLLATE "C") FILTER (WHERE lease IS NULL AND reason IS NOT NULL AND status <> 'scheduled') AS own
    FROM queue WHERE region = %(region)s GROUP BY destination
), held AS (
    SELECT name, state, reason, least(until, '9999-12-31 23:59:59.999999+00') AS until, failures
    FROM destinations WHERE region = %(region)s AND until > %(now)s
)
SELECT c.name, c.queued, c.delayed, c.uncertain, c.sending, c.scheduled, c.oldest, c.next_at,
       CASE WHEN d.state IS NOT NULL THEN d.state WHEN s.name IS NOT NULL THEN 'slow' END, coalesce(d.reason, s.reason, c.own),
       coalesce(d.until, s.until), coalesce(d.failures, 0)
FROM counted c
LEFT JOIN slowdowns s ON s.region = %(region)s AND s.name = split_part(c.name, '/', 1) AND s.until > %(now)s
LEFT JOIN LATERAL (
    SELECT * FROM held WHERE held.name IN (c.name, split_part(c.name, '/', 1), '*') ORDER BY held.until DESC LIMIT 1
) d ON true
UNION ALL
SELECT h.name, 0, 0, 0, 0, 0, NULL, NULL, h.state, h.reason, h.until, h.failures
FROM held h WHERE NOT EXISTS (SELECT FROM counted c WHERE h.name = c.name)
ORDER BY 2 DESC, 3 DESC, 1 LIMIT %(limit)s
"""

PAUSES = "SELECT account_id, reason, least(until, '9999-12-31 23:59:59.999999+00') FROM account_pauses WHERE until > %s"
PAUSE_ACCOUNT = """
INSERT INTO account_pauses (account_id, reason, until) VALUES (%s, %s, %s)
ON CONFLICT (account_id) DO UPDATE SET reason = excluded.reason, until = excluded.until
"""
RESUME_ACCOUNT = "DELETE FROM account_pauses WHERE account_id = %s"

_WAITING = "lease IS NULL AND status <> 'scheduled'"
PAUSE_EMAIL = f"UPDATE queue SET next_at = %s, reason = %s WHERE email_id = %s AND {_WAITING}"
NOW_EMAIL = f"UPDATE queue SET next_at = %s WHERE email_id = %s AND next_at > %s AND {_WAITING}"
NOW_ACCOUNT = f"UPDATE queue SET next_at = %s WHERE account_id = %s AND next_at > %s AND {_WAITING}"
NOW_DESTINATION = f"""
UPDATE queue SET next_at = %s
WHERE region = %s AND (destination = %s OR split_part(destination, '/', 1) = %s) AND next_at > %s AND {_WAITING}
"""
SENDING = "SELECT count(*) FROM queue WHERE email_id = %s AND lease IS NOT NULL"
EMAIL = """
SELECT w.recipient, w.address, w.destination, w.status, w.attempts, w.reason, w.next_at
FROM waiting_at(%s) w WHERE w.email_id = %s ORDER BY w.recipient
"""


@attrs.frozen
class DestinationView:
    """How many recipients are in each state, since when the oldest waits, what holds all of them and until when."""

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
    """A recipient of an email that waits."""

    recipient: int
    address: str
    destination: str
    status: str
    attempts: int
    reason: str | None
    next_at: datetime | None


class Operating:
    """The tables queue and account_pauses, by the operator's hand."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def destinations(self, region: str, now: datetime, limit: int = 1000) -> list[DestinationView]:
        rows = await self._pool.rows(DESTINATIONS, {"region": region, "now": now, "limit": limit})
        return [_view(*row) for row in rows]

    async def email(self, email_id: UUID, now: datetime) -> list[Waiting]:
        return [Waiting(*row) for row in await self._pool.rows(EMAIL, (now, email_id))]

    async def pauses(self, now: datetime) -> Mapping[UUID, tuple[str, datetime]]:
        """Accounts that are paused: why, and until when."""
        return {account: (reason, until) for account, reason, until in await self._pool.rows(PAUSES, (now,))}

    async def pause_account(self, account_id: UUID, reason: str, until: datetime) -> None:
        await self._pool.run(PAUSE_ACCOUNT, (account_id, reason, until))

    async def resume_account(self, account_id: UUID, now: datetime) -> int:
        """How many recipients may go again."""

        async def resume(tx: Transaction) -> int:
            await tx.run(RESUME_ACCOUNT, (account_id,))  # after whoever gives mail back because of it
            return await tx.run(NOW_ACCOUNT, (now, account_id, now))

        return await self._pool.transact(resume)

    async def pause_email(self, email_id: UUID, reason: str, until: datetime) -> tuple[int, int]:
        """How many recipients wait now, and how many are being sent to just now."""
        paused = await self._pool.run(PAUSE_EMAIL, (until, reason, email_id))
        [(sending,)] = await self._pool.rows(SENDING, (email_id,))
        return paused, sending

    async def retry_email(self, email_id: UUID, now: datetime) -> int:
        return await self._pool.run(NOW_EMAIL, (now, email_id, now))

    async def retry_account(self, account_id: UUID, now: datetime) -> int:
        return await self._pool.run(NOW_ACCOUNT, (now, account_id, now))

    async def retry_destination(self, region: str, name: str, now: datetime) -> int:
        """Of a provider: all of its destinations."""
        return await self._pool.run(BY_INDEX + NOW_DESTINATION, (now, region, name, name, now))


def _view(name: str, *rest: Any) -> DestinationView:
    queued, delayed, uncertain, sending, scheduled, oldest, *held = rest
    since = None if oldest is None else uuid7_seconds(UUID(oldest))
    return DestinationView(name, queued, delayed, uncertain, sending, scheduled, since, *held)
