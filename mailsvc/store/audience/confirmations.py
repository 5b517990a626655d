"""Double opt-in: contacts that were asked to confirm a segment or a topic, and the emails that have yet to ask them.

Nothing is in `contact_segments` or `contact_topics` before the person confirms. Sending the emails: audience/double_opt_in.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.audience.segments import wording
from mailsvc.store.audience.values import Confirmation
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Kind = Literal["segment", "topic"]

# Another one only after the former expired, or was confirmed and the contact has left since.
REQUEST = """
INSERT INTO confirmations AS c (account_id, id, contact_id, kind, target_id, requested_at, expires_at, retry_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (account_id, contact_id, target_id) DO UPDATE SET
    id = excluded.id, requested_at = excluded.requested_at, expires_at = excluded.expires_at, retry_at = excluded.retry_at,
    email_id = NULL, confirmed_at = NULL
WHERE c.expires_at < excluded.requested_at OR c.confirmed_at IS NOT NULL
RETURNING id
"""
_REQUEST = Columns.of(
    account_id="r.account_id",
    id="r.id",
    contact_id="r.contact_id",
    email="c.email",
    kind="r.kind",
    target_id="r.target_id",
    name="coalesce(s.name, t.name)",
    wording="coalesce(s.confirmation, t.confirmation)",
    expires_at="r.expires_at",
    confirmed_at="r.confirmed_at",
    email_id="r.email_id",
)
_SELECT = f"""
SELECT {_REQUEST} FROM confirmations r JOIN contacts c ON c.account_id = r.account_id AND c.id = r.contact_id
LEFT JOIN segments s ON s.account_id = r.account_id AND s.id = r.target_id AND s.deleted_at IS NULL
LEFT JOIN topics t ON t.account_id = r.account_id AND t.id = r.target_id AND t.deleted_at IS NULL
"""
DUE = f"{_SELECT} WHERE r.retry_at <= %s ORDER BY r.retry_at LIMIT %s"
GET = f"{_SELECT} WHERE r.account_id = %s AND r.id = %s"
# The claim of one that is due: another process does not send it as well.
CLAIM = "UPDATE confirmations SET retry_at = %s WHERE account_id = %s AND id = %s AND retry_at <= %s"
POSTPONE = "UPDATE confirmations SET retry_at = %s WHERE account_id = %s AND id = %s AND retry_at IS NOT NULL"
SENT = "UPDATE confirmations SET retry_at = NULL, email_id = %s WHERE account_id = %s AND id = %s"
CONFIRMED = "UPDATE confirmations SET confirmed_at = %s WHERE account_id = %s AND id = %s AND confirmed_at IS NULL AND expires_at > %s"


@attrs.frozen
class Request:
    """A request for confirmation. `name` and `wording` are None if the segment or topic was deleted, or asks for none any more."""

    account_id: UUID
    id: UUID
    contact_id: UUID
    email: str = attrs.field(repr=False)
    kind: Kind
    target_id: UUID
    name: str | None
    wording: Confirmation | None = attrs.field(converter=wording)
    expires_at: datetime
    confirmed_at: datetime | None
    email_id: UUID | None  # the email that asked


async def request(tx: Transaction, account_id: UUID, contact_id: UUID, kind: Kind, target_id: UUID, now: datetime, life: timedelta) -> bool:
    """Ask a contact; False if it was asked already. `life`: of the link; nobody is asked again before it expires."""
    values = (account_id, uuid7(now.timestamp()), contact_id, kind, target_id, now, now + life, now)
    return bool(await tx.rows(REQUEST, values))


async def confirm(tx: Transaction, account_id: UUID, id_: UUID, now: datetime) -> bool:
    """Whether this is the first confirmation, and in time."""
    return await tx.run(CONFIRMED, (now, account_id, id_, now)) > 0


async def find(tx: Transaction, account_id: UUID, id_: UUID) -> Request | None:
    rows = await tx.rows(GET, (account_id, id_))
    return _request(rows[0]) if rows else None


def _request(row: Row) -> Request:
    return Request(**_REQUEST.read(row))


@attrs.define(eq=False)
class Confirmations:
    """The emails that ask."""

    pool: Pool

    async def due(self, now: datetime, limit: int = 100) -> list[Request]:
        return [_request(row) for row in await self.pool.rows(DUE, (now, limit))]

    async def claim(self, due: Request, now: datetime, until: datetime) -> bool:
        """Whether this process may send it. Another one may from `until`, if it is not reported sent before."""
        return await self.pool.run(CLAIM, (until, due.account_id, due.id, now)) > 0

    async def postpone(self, due: Request, until: datetime) -> None:
        """The email was refused for now."""
        await self.pool.run(POSTPONE, (until, due.account_id, due.id))

    async def sent(self, due: Request, email_id: UUID | None) -> None:
        """The email was accepted, or (None) refused for good."""
        await self.pool.run(SENT, (email_id, due.account_id, due.id))

    async def get(self, account_id: UUID, id_: UUID) -> Request | None:
        rows = await self.pool.rows(GET, (account_id, id_))
        return _request(rows[0]) if rows else None
