"""Reads events with their emails, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.postgres.pool import Pool

log = Logger()

# Columns of a Fact, in the order of its fields: `e` is the event, `m` its email, which events of the account do not have.
FACT = """
    e.event_id, e.type, e.at, e.recipient, e.data,
    m.email_id, m.created_at, m.message_id, m.sender, m.recipients, m.subject, m.tags, m.headers, m.broadcast_id
"""

# Each event is looked up by its key, as the log is read in order. Of a join, Postgres expects hardly any rows, and reads all events first.
AFTER = f"""
SELECT l.sequence, {FACT}
FROM event_log l
CROSS JOIN LATERAL (
    SELECT * FROM events WHERE account_id = l.account_id AND email_id = l.email_id AND event_id = l.event_id OFFSET 0
) e
LEFT JOIN LATERAL (SELECT * FROM emails WHERE account_id = l.account_id AND email_id = l.email_id OFFSET 0) m ON true
WHERE l.account_id = %s AND l.sequence > %s AND (m.email_id IS NOT NULL OR e.email_id = e.event_id)
ORDER BY l.sequence LIMIT %s
"""


@attrs.frozen
class Mail:
    """The email of an event."""

    email_id: UUID
    created_at: datetime
    message_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    tags: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    broadcast_id: UUID | None = None


@attrs.frozen
class Fact:
    """An event with everything that customers see of it. `recipient`: its number in the email, None for the whole email."""

    event_id: UUID
    type: str
    at: datetime
    recipient: int | None
    data: Mapping[str, Any]
    mail: Mail | None


class EventLog:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def after(self, account_id: UUID, sequence: int, limit: int) -> tuple[list[tuple[int, Fact]], bool]:
        """The next `limit` events of an account with their numbers, and whether there are more.

        Deleted events, and those that cannot be read, are left out.
        """
        rows = await self._pool.rows(AFTER, (account_id, sequence, limit + 1))
        found = [(number, fact(columns)) for number, *columns in rows[:limit]]
        return [(number, each) for number, each in found if each is not None], len(rows) > limit


def fact(row: Sequence[Any]) -> Fact | None:
    """Read the columns FACT. None if the event, or the email that it needs, no longer exists or cannot be read.

    By position, because this runs for each message of a webhook.
    """
    event_id, kind, at, recipient, data, email_id, *rest = row
    if event_id is None or (email_id is None and kind.startswith("email.")):
        return None
    try:
        return Fact(event_id, kind, at, recipient, data or {}, None if email_id is None else _mail(email_id, *rest))
    except (AttributeError, LookupError, TypeError, ValueError):  # whoever reads the others with it could not get past it
        log.failure("the event {event_id} cannot be read", event_id=str(event_id))
        return None


def _mail(
    email_id: UUID, created_at: datetime, message_id: str, sender: str, recipients: list[str], subject: str, tags: Any, headers: Any,
    broadcast_id: UUID | None,
) -> Mail:  # fmt: skip
    named = tuple((tag["name"], tag["value"]) for tag in tags or ())
    return Mail(email_id, created_at, message_id, sender, tuple(recipients), subject, named, headers or {}, broadcast_id)
