"""Reading emails, canceling and rescheduling them.

Every statement is limited to one account. The bytes of messages: store/mail/messages. A field of a view is a column of the same name,
unless the list of columns has another expression for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.outcome import EVENTS, WAITING
from mailsvc.store.events import events
from mailsvc.store.events.event_data import Schedule
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns, statement

Cancellation = Literal["canceled", "not_found", "too_late"]
Rescheduling = Literal["rescheduled", "not_found", "too_late"]


# The final state of a recipient by its event.
FINAL = {event: state for state, event in EVENTS.items() if state not in WAITING}


@attrs.frozen
class EmailView:
    """An email as returned by reads and lists. `last_event` is the type of its latest event."""

    account_id: UUID
    email_id: UUID
    created_at: datetime
    source: str
    key_id: UUID | None
    domain_id: UUID
    message_id: str
    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: tuple[str, ...]
    recipients: tuple[str, ...]
    subject: str
    tags: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    envelope: StoredEnvelope
    size: int
    bulk: bool
    scheduled_at: datetime | None
    last_event: str
    broadcast_id: UUID | None = None
    topic_id: UUID | None = None


@attrs.frozen
class RecipientView:
    """The state of one recipient. `reason` explains a problem: the reply, its meaning, and who has to act.

    `next_at` and `expires_at` are set while it is waiting. `last_reply` is the latest reply of a server or a local reason. `kind` is the
    class of the latest problem, found by `rule` (diagnosis), if any.
    """

    recipient: int
    address: str
    status: str
    reason: str | None
    next_at: datetime | None
    attempts: int
    last_reply: str | None
    kind: str | None = None
    rule: str | None = None
    expires_at: datetime | None = None

    @property
    def only_expires(self) -> bool:
        """Whether nothing is tried before it expires, for example because its account's mail is held."""
        if self.status == "sending" or self.next_at is None or self.expires_at is None:
            return False
        return self.next_at >= self.expires_at


@attrs.frozen
class AttemptView:
    """An attempt over SMTP, with the outcome for each of its recipients. `transcript` "": none is kept."""

    attempt_id: UUID
    recipients: tuple[int, ...]
    outcomes: tuple[str, ...]
    replies: tuple[str, ...]
    classes: tuple[str | None, ...]  # meanings of refusals and their rules (diagnosis); None: not refused
    rules: tuple[str | None, ...]
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str
    source: str | None = None  # our address; None: the system chose it


# The latest event, which has the greatest ID. An email that was opened is not shown as delivered again, for example to another recipient.
# That of a broadcast's email may not be stored (store/mail/history).
_LAST_EVENT = """coalesce((
    SELECT CASE WHEN bool_or(v.type IN ('email.opened', 'email.clicked'))
        THEN (array_agg(v.type ORDER BY v.event_id DESC) FILTER (WHERE v.type NOT IN ('email.delivered', 'email.delivery_delayed')))[1]
        ELSE (array_agg(v.type ORDER BY v.event_id DESC))[1] END
    FROM events v WHERE {of_email}
), CASE WHEN e.broadcast_id IS NOT NULL THEN 'email.sent' END)"""
LAST_EVENT = _LAST_EVENT.format(of_email="v.account_id = e.account_id AND v.email_id = e.email_id")

# Emails with known IDs, and their events. Both are limited to the days from the `first` to the `last` of them: planning for all days, whose
# number grows with the retention, takes much longer than reading a page.
OF_EMAIL = "v.account_id = %(account_id)s AND v.email_id = e.email_id AND v.email_id >= %(first)s AND v.email_id <= %(last)s"
OF_PAGE = "e.account_id = %(account_id)s AND e.email_id = ANY (%(emails)s) AND e.email_id >= %(first)s AND e.email_id <= %(last)s"
LAST_EVENT_OF_PAGE = _LAST_EVENT.format(of_email=OF_EMAIL)

# Without the message. The time of a scheduled email is in its latest event email.scheduled.
_EMAIL = Columns.of_class(
    EmailView,
    "e",
    to="e.to_",
    scheduled_at=f"""CASE WHEN e.scheduled_at IS NOT NULL THEN coalesce((
        SELECT v.data ->> 'scheduled_at' FROM events v WHERE {OF_EMAIL} AND v.type = 'email.scheduled' ORDER BY v.event_id DESC LIMIT 1
    )::timestamptz, e.scheduled_at) END""",
    last_event=LAST_EVENT_OF_PAGE,
)
VIEW = f"SELECT {_EMAIL} FROM emails e WHERE {OF_PAGE} ORDER BY e.email_id DESC"
_IDS = "SELECT e.email_id FROM emails e WHERE e.account_id = %s"
NEWEST = f"{_IDS} ORDER BY e.email_id DESC LIMIT %s"
_OLDER = f"{_IDS} AND e.email_id < %s ORDER BY e.email_id DESC LIMIT %s"
_NEWER = f"{_IDS} AND e.email_id > %s ORDER BY e.email_id LIMIT %s"

_RECIPIENTS = statement("mailsvc.store.mail", "recipients")

_ATTEMPT = Columns.of_class(AttemptView, "a", classes="coalesce(a.classes, '{}')", rules="coalesce(a.rules, '{}')")
# A delivered email of a broadcast has its last attempt in its event (store/events/event_data).
_DELIVERED = Columns.of_class(
    AttemptView,
    "v",
    attempt_id="v.event_id",
    recipients="ARRAY[v.recipient]",
    outcomes="'{delivered}'",
    replies="ARRAY[v.data ->> 'reply']",
    classes="'{}'",
    rules="'{}'",
    host="v.data ->> 'host'",
    address="v.data ->> 'address'",
    tls="v.data ->> 'tls'",
    started_at="v.at - (v.data ->> 'seconds')::double precision * interval '1 second'",
    seconds="(v.data ->> 'seconds')::real",
    transcript="''",
    source="v.data ->> 'source'",
)
_ATTEMPTS = f"""
SELECT {_ATTEMPT} FROM attempts a WHERE a.account_id = %(account_id)s AND a.email_id = %(email_id)s
UNION ALL SELECT {_DELIVERED} FROM events v
WHERE v.account_id = %(account_id)s AND v.email_id = %(email_id)s AND v.type = 'email.delivered' AND v.data ? 'seconds'
ORDER BY 1
"""

_EXISTS = "SELECT EXISTS (SELECT FROM emails WHERE account_id = %s AND email_id = %s)"

# Except recipients being sent to, and those that may have been delivered already.
_CANCEL = """
DELETE FROM queue WHERE account_id = %s AND email_id = %s AND coalesce(lease, -1) = -1 AND status IN ('scheduled', 'queued', 'delayed')
RETURNING recipient, domain_id
"""

_RESCHEDULE = """
UPDATE queue SET next_at = %(at)s, expires_at = expires_at + (%(at)s - next_at)
WHERE account_id = %(account_id)s AND email_id = %(email_id)s AND coalesce(lease, -1) = -1 AND status = 'scheduled'
"""

# Only in the email's history, not in the event log: nothing happened that a reader of events has to act on.
_RESCHEDULED = """
INSERT INTO events (account_id, email_id, event_id, type, at, data) VALUES (%s, %s, %s, 'email.scheduled', %s, %s)
"""


def of_page(account_id: UUID, emails: Collection[UUID]) -> dict[str, object]:
    """The parameters of OF_PAGE and OF_EMAIL, for at least one email."""
    return {"account_id": account_id, "emails": list(emails), "first": min(emails), "last": max(emails)}


class Emails:
    """Reads and changes the emails of an account."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def get(self, account_id: UUID, email_id: UUID) -> EmailView | None:
        found = await self._views(account_id, [email_id])
        return found[0] if found else None

    async def recipients(self, account_id: UUID, email_id: UUID) -> list[RecipientView]:
        """All recipients of an email, in order; empty if there is no such email."""
        named = {"account_id": account_id, "email_id": email_id, "types": [*FINAL], "now": self._now()}
        return [_recipient(row) for row in await self._pool.rows(_RECIPIENTS, named)]

    async def attempts(self, account_id: UUID, email_id: UUID) -> list[AttemptView]:
        """Oldest first."""
        rows = await self._pool.rows(_ATTEMPTS, {"account_id": account_id, "email_id": email_id})
        return [_attempt(row) for row in rows]

    async def cancel(self, account_id: UUID, email_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> Cancellation:
        """Cancel the recipients that are waiting and not being sent to; "too_late" if there are none."""

        async def cancel(tx: Transaction) -> Cancellation:
            rows = await tx.rows(_CANCEL, (account_id, email_id))
            await events.write(tx, [NewEvent(account_id, email_id, domain, number, "email.canceled", now) for number, domain in rows])
            if not rows:
                return await _why_unchanged(tx, account_id, email_id)
            await write(tx, lines, now.timestamp())
            return "canceled"

        return await self._pool.transact(cancel)

    async def reschedule(self, account_id: UUID, email_id: UUID, at: datetime, now: datetime, lines: Sequence[Line] = ()) -> Rescheduling:
        """Change the time of a scheduled email; it expires later by the same amount."""

        async def reschedule(tx: Transaction) -> Rescheduling:
            if not await tx.run(_RESCHEDULE, {"account_id": account_id, "email_id": email_id, "at": at}):
                return await _why_unchanged(tx, account_id, email_id)
            data = Schedule(at).stored()
            await tx.run(_RESCHEDULED, (account_id, email_id, uuid7(now.timestamp()), now, data))
            await write(tx, lines, now.timestamp())
            return "rescheduled"

        return await self._pool.transact(reschedule)

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[EmailView], bool]:
        """Newest first: `limit` emails older than `after` or newer than `before`, and whether there are more."""
        if before is not None:
            rows = await self._pool.rows(_NEWER, (account_id, before, limit + 1))
        elif after is not None:
            rows = await self._pool.rows(_OLDER, (account_id, after, limit + 1))
        else:
            rows = await self._pool.rows(NEWEST, (account_id, limit + 1))
        page = [email_id for (email_id,) in rows[:limit]]
        return (await self._views(account_id, page) if page else []), len(rows) > limit

    async def _views(self, account_id: UUID, emails: Sequence[UUID]) -> Sequence[EmailView]:
        """Newest first."""
        return [_email(row) for row in await self._pool.rows(VIEW, of_page(account_id, emails))]

    def _now(self) -> datetime:
        return utc(self._clock)


async def _why_unchanged(tx: Transaction, account_id: UUID, email_id: UUID) -> Literal["not_found", "too_late"]:
    [(exists,)] = await tx.rows(_EXISTS, (account_id, email_id))
    return "too_late" if exists else "not_found"


def _email(row: Row) -> EmailView:
    values = _EMAIL.read(row)
    for name in ("to", "cc", "bcc", "reply_to", "recipients"):
        values[name] = tuple(values[name])
    values["tags"] = tuple((tag["name"], tag["value"]) for tag in values["tags"] or ())
    values["headers"] = values["headers"] or {}
    values["envelope"] = StoredEnvelope.read(values["envelope"])
    return EmailView(**values)


def _attempt(row: Row) -> AttemptView:
    values = _ATTEMPT.read(row)
    for name in ("recipients", "outcomes", "replies", "classes", "rules"):
        values[name] = tuple(values[name])
    return AttemptView(**values)


def _recipient(row: Row) -> RecipientView:
    number, address, waiting, event, reason, next_at, attempts, last_reply, kind, rule, expires_at = row
    # Without both, its history was deleted while its email was kept: it is known only to be final.
    status = waiting or FINAL.get(event, "failed")
    return RecipientView(number, address, status, reason, next_at, attempts, last_reply, kind, rule, expires_at)
