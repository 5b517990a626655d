"""What the console shows of accounts: lists, searches, and rates of sending, bounces and complaints. No addresses of recipients.

Changes of accounts are made where commands make them, in store/people and store/queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

WINDOW = timedelta(days=7)

_RATES = """CROSS JOIN LATERAL (
    SELECT coalesce(sum(count) FILTER (WHERE type = 'email.sent'), 0)::bigint AS sent,
           coalesce(sum(count) FILTER (WHERE type = 'email.delivered'), 0)::bigint AS delivered,
           coalesce(sum(count) FILTER (WHERE type LIKE 'email.bounced.%%'), 0)::bigint AS bounced,
           coalesce(sum(count) FILTER (WHERE type = 'email.complained'), 0)::bigint AS complained
    FROM rollups WHERE account_id = a.id AND hour >= %(since)s
) r"""
_ROW = Columns.of(
    id="a.id",
    number="a.number",
    name="a.name",
    plan="a.plan",
    suspended_at="a.suspended_at",
    closes_at="a.closes_at",
    trusted_at="a.trusted_at",
    ramp="a.ramp",
    held="(SELECT p.reason FROM account_pauses p WHERE p.account_id = a.id AND p.until > %(now)s)",
    sent="r.sent",
    delivered="r.delivered",
    bounced="r.bounced",
    complained="r.complained",
)
_MATCHES = """
(%(text)s = '' OR strpos(lower(a.name), lower(%(text)s)) > 0 OR a.id::text = lower(%(text)s) OR a.number::text = %(text)s
 OR EXISTS (SELECT FROM members m JOIN users u ON u.id = m.user_id WHERE m.account_id = a.id AND u.email = lower(%(text)s))
 OR EXISTS (SELECT FROM domains d WHERE d.account_id = a.id AND d.name = lower(%(text)s)))
"""
_LIST = f"""
SELECT {_ROW} FROM (SELECT * FROM accounts a WHERE a.number > %(after)s AND {_MATCHES} ORDER BY a.number LIMIT %(limit)s) a {_RATES}
ORDER BY a.number
"""
_ONE = f"SELECT {_ROW} FROM accounts a {_RATES} WHERE a.id = %(id)s"
_COUNTS = """
SELECT (SELECT count(*) FROM members WHERE account_id = %(id)s),
       (SELECT count(*) FROM api_keys WHERE account_id = %(id)s AND revoked_at IS NULL),
       (SELECT count(*) FROM webhooks WHERE account_id = %(id)s),
       (SELECT count(*) FROM queue WHERE account_id = %(id)s),
       ARRAY(SELECT name FROM domains WHERE account_id = %(id)s ORDER BY name LIMIT 100)
"""


@attrs.frozen
class AccountRow:
    """An account with its figures since WINDOW. `held`: why its mail is on hold. `closes_at`: when its data is deleted, if it is closed."""

    id: UUID
    number: int
    name: str
    plan: str | None
    suspended_at: datetime | None
    closes_at: datetime | None
    trusted_at: datetime | None
    ramp: int | None
    held: str | None
    sent: int
    delivered: int
    bounced: int
    complained: int

    @property
    def bounce_rate(self) -> float | None:
        """Of the recipients that were delivered to or bounced; None if there were none."""
        known = self.delivered + self.bounced
        return self.bounced / known if known else None

    @property
    def complaint_rate(self) -> float | None:
        return self.complained / self.delivered if self.delivered else None


@attrs.frozen
class Possessions:
    """How much an account has."""

    members: int
    keys: int
    webhooks: int
    queued: int
    domains: Sequence[str]


class AccountFigures:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def search(self, text: str, limit: int, after: int = 0) -> list[AccountRow]:
        """By a part of the name, the ID or number, a member's address or a sending domain; from the number after `after`."""
        given = {**self._times(), "text": text, "limit": limit, "after": after}
        return [AccountRow(**_ROW.read(row)) for row in await self._pool.rows(_LIST, given)]

    async def get(self, account_id: UUID) -> AccountRow | None:
        rows = await self._pool.rows(_ONE, {**self._times(), "id": account_id})
        return AccountRow(**_ROW.read(rows[0])) if rows else None

    async def possessions(self, account_id: UUID) -> Possessions:
        return Possessions(*(await self._pool.rows(_COUNTS, {"id": account_id}))[0])

    async def limit(self, account_id: UUID, rate_limit: int | None, ramp: int | None, lines: Sequence[Line]) -> None:
        """Change the requests per second (None: the default) and the recipients per day as a new account (None: not limited)."""
        now = utc(self._clock)
        sql = """UPDATE accounts SET rate_limit = %s, ramp = %s,
            ramp_at = CASE WHEN ramp IS DISTINCT FROM %s THEN %s ELSE ramp_at END WHERE id = %s"""
        await changed(self._pool, now.timestamp(), lines, sql, (rate_limit, ramp, ramp, now, account_id))

    def _times(self) -> dict[str, datetime]:
        now = utc(self._clock)
        return {"now": now, "since": now - WINDOW}
