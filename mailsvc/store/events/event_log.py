"""Reads events with their emails, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool

log = Logger()

# Columns of a Fact, in the order of its fields: `e` is the event, `m` its email, which events of the account do not have.
FACT = """
    e.event_id, e.type, e.at, e.recipient, e.data,
    m.email_id, m.created_at, m.message_id, m.sender, m.recipients, m.subject, m.tags, m.headers, m.broadcast_id
"""

# The next numbers of an account. Its events are read in a second step, because they are planned for their own days only: planning for all
# days, whose number grows with the retention, takes much longer than reading a page.
NUMBERS = "SELECT sequence, email_id, event_id FROM event_log WHERE account_id = %s AND sequence > %s ORDER BY sequence LIMIT %s"
_OF_DAYS = "account_id = %(account_id)s AND email_id = k.email_id AND email_id >= %(first)s AND email_id <= %(last)s"
# Each event is looked up by its key. Of a join, Postgres expects hardly any rows, and reads all events first.
FACTS = f"""
SELECT k.sequence, {FACT}
FROM unnest(%(sequences)s::bigint[], %(emails)s::uuid[], %(events)s::uuid[]) AS k(sequence, email_id, event_id)
CROSS JOIN LATERAL (SELECT * FROM events WHERE {_OF_DAYS} AND event_id = k.event_id OFFSET 0) e
LEFT JOIN LATERAL (SELECT * FROM emails WHERE {_OF_DAYS} OFFSET 0) m ON true
WHERE m.email_id IS NOT NULL OR e.email_id = e.event_id
ORDER BY k.sequence LIMIT %(most)s
"""
LOOKED = 1000  # numbers that are looked up at once at most, while events that were deleted are passed over


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
        rows: list[Row] = []
        size = limit + 1
        while len(rows) <= limit:
            numbers = await self._pool.rows(NUMBERS, (account_id, sequence, size))
            if numbers:
                rows += await self._pool.rows(FACTS, facts(account_id, numbers, limit + 1 - len(rows)))
            if len(numbers) < size:
                break
            sequence, size = numbers[-1][0], max(size, LOOKED)
        found = [(number, fact(columns)) for number, *columns in rows[:limit]]
        return [(number, each) for number, each in found if each is not None], len(rows) > limit


def facts(account_id: UUID, numbers: Sequence[Row], most: int) -> dict[str, Any]:
    """The parameters of FACTS for rows of NUMBERS, of which there is at least one."""
    sequences, emails, events = ([*column] for column in zip(*numbers, strict=True))
    days = {"first": min(emails), "last": max(emails)}
    return {"account_id": account_id, "sequences": sequences, "emails": emails, "events": events, "most": most, **days}


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
