"""Reading emails, canceling and rescheduling them.

Every statement is limited to one account. The bytes of messages: store/mail/messages. Rows are mapped by name; the columns are in
store/mail/emails_sql.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.outcome import EVENTS, WAITING
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.mail import emails_sql
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction

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


@attrs.frozen
class RecipientView:
    """The state of one recipient. `reason` explains a problem: the reply, its meaning, and who has to act.

    `next_at` is set while it is waiting. `last_reply` is the latest reply of a server or a local reason. `kind` is the class of the
    latest problem, found by `rule` (diagnosis), if any.
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


@attrs.frozen
class AttemptView:
    """An attempt over SMTP, with the outcome for each of its recipients."""

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


class Emails:
    """Reads and changes the emails of an account."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def get(self, account_id: UUID, email_id: UUID) -> EmailView | None:
        rows = await self._pool.rows(emails_sql.GET, (account_id, email_id))
        return _email(rows[0]) if rows else None

    async def recipients(self, account_id: UUID, email_id: UUID) -> list[RecipientView]:
        """All recipients of an email, in order; empty if there is no such email."""
        named = {"account_id": account_id, "email_id": email_id, "types": [*FINAL], "now": self._now()}
        return [_recipient(row) for row in await self._pool.rows(emails_sql.RECIPIENTS, named)]

    async def attempts(self, account_id: UUID, email_id: UUID) -> list[AttemptView]:
        """Oldest first."""
        rows = await self._pool.rows(emails_sql.ATTEMPTS, (account_id, email_id))
        return [_attempt(row) for row in rows]

    async def cancel(self, account_id: UUID, email_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> Cancellation:
        """Cancel the recipients that are waiting and not being sent to; "too_late" if there are none."""

        async def cancel(tx: Transaction) -> Cancellation:
            rows = await tx.rows(emails_sql.CANCEL, (account_id, email_id))
            await events.write(tx, [NewEvent(account_id, email_id, domain, number, "email.canceled", now) for number, domain in rows])
            if not rows:
                return await _why_unchanged(tx, account_id, email_id)
            await write(tx, lines, now.timestamp())
            return "canceled"

        return await self._pool.transact(cancel)

    async def reschedule(self, account_id: UUID, email_id: UUID, at: datetime, now: datetime, lines: Sequence[Line] = ()) -> Rescheduling:
        """Change the time of a scheduled email; it expires later by the same amount."""

        async def reschedule(tx: Transaction) -> Rescheduling:
            if not await tx.run(emails_sql.RESCHEDULE, {"account_id": account_id, "email_id": email_id, "at": at}):
                return await _why_unchanged(tx, account_id, email_id)
            data = {"scheduled_at": at.isoformat()}
            await tx.run(emails_sql.RESCHEDULED, (account_id, email_id, uuid7(now.timestamp()), now, data))
            await write(tx, lines, now.timestamp())
            return "rescheduled"

        return await self._pool.transact(reschedule)

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[list[EmailView], bool]:
        """Newest first: `limit` emails older than `after` or newer than `before`, and whether there are more."""
        if before is not None:
            rows = await self._pool.rows(emails_sql.NEWER, (account_id, before, limit + 1))
        elif after is not None:
            rows = await self._pool.rows(emails_sql.OLDER, (account_id, after, limit + 1))
        else:
            rows = await self._pool.rows(emails_sql.NEWEST, (account_id, limit + 1))
        page = [_email(row) for row in rows[:limit]]
        return (page[::-1] if before is not None else page), len(rows) > limit

    def _now(self) -> datetime:
        return utc(self._clock)


async def _why_unchanged(tx: Transaction, account_id: UUID, email_id: UUID) -> Literal["not_found", "too_late"]:
    [(exists,)] = await tx.rows(emails_sql.EXISTS, (account_id, email_id))
    return "too_late" if exists else "not_found"


def _email(row: Row) -> EmailView:
    values = emails_sql.EMAIL.read(row)
    for name in ("to", "cc", "bcc", "reply_to", "recipients"):
        values[name] = tuple(values[name])
    values["tags"] = tuple((tag["name"], tag["value"]) for tag in values["tags"] or ())
    values["headers"] = values["headers"] or {}
    values["envelope"] = StoredEnvelope.read(values["envelope"])
    return EmailView(**values)


def _attempt(row: Row) -> AttemptView:
    values = emails_sql.ATTEMPT.read(row)
    for name in ("recipients", "outcomes", "replies", "classes", "rules"):
        values[name] = tuple(values[name])
    return AttemptView(**values)


def _recipient(row: Row) -> RecipientView:
    number, address, waiting, event, reason, next_at, attempts, last_reply, kind, rule = row
    # Without both, its history was deleted while its email was kept: it is known only to be final.
    return RecipientView(number, address, waiting or FINAL.get(event, "failed"), reason, next_at, attempts, last_reply, kind, rule)
