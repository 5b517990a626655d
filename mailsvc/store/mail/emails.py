"""Reading emails back, and the two things that may still be changed about one: when it goes, and that it goes at all.

Every statement names the account. The bytes of a message are in store/mail/messages.
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


# What a recipient is when it waits no longer, by the event that told of it.
FINAL = {event: state for state, event in EVENTS.items() if state not in WAITING}


@attrs.frozen
class EmailView:
    """An email as lists and single reads show it. `last_event` is the type of its newest event."""

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
    """Where one recipient is. `reason` says why, unless all is well: what was said, what it means, who must act.

    `next_at` is set as long as it waits; `last_reply` once a peer or we gave one. `kind` is the class of what
    went wrong last, by `rule` (diagnosis); None: nothing, or nobody said.
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
    """One try over SMTP, with what it came to for each of its recipients."""

    attempt_id: UUID
    recipients: tuple[int, ...]
    outcomes: tuple[str, ...]
    replies: tuple[str, ...]
    classes: tuple[str | None, ...]  # what the refusals mean, and by which rule (diagnosis); None: it was none
    rules: tuple[str | None, ...]
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str


class Emails:
    """The emails of all accounts, for one account at a time."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def get(self, account_id: UUID, email_id: UUID) -> EmailView | None:
        rows = await self._pool.rows(emails_sql.GET, (account_id, email_id))
        return _email(rows[0]) if rows else None

    async def recipients(self, account_id: UUID, email_id: UUID) -> list[RecipientView]:
        """All of an email's, in their order; none for an email that is not there."""
        named = {"account_id": account_id, "email_id": email_id, "types": [*FINAL], "now": self._now()}
        return [_recipient(row) for row in await self._pool.rows(emails_sql.RECIPIENTS, named)]

    async def attempts(self, account_id: UUID, email_id: UUID) -> list[AttemptView]:
        """Oldest first."""
        rows = await self._pool.rows(emails_sql.ATTEMPTS, (account_id, email_id))
        return [AttemptView(row[0], tuple(row[1]), tuple(row[2]), tuple(row[3]), tuple(row[4]), tuple(row[5]), *row[6:]) for row in rows]

    async def cancel(self, account_id: UUID, email_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> Cancellation:
        """Cancel the recipients that wait and that nobody is sending to now; too late when there are none."""

        async def cancel(tx: Transaction) -> Cancellation:
            rows = await tx.rows(emails_sql.CANCEL, (account_id, email_id))
            await events.write(tx, [NewEvent(account_id, email_id, domain, number, "email.canceled", now) for number, domain in rows])
            if not rows:
                return await _absent(tx, account_id, email_id)
            await write(tx, lines, now.timestamp())
            return "canceled"

        return await self._pool.transact(cancel)

    async def reschedule(self, account_id: UUID, email_id: UUID, at: datetime, now: datetime, lines: Sequence[Line] = ()) -> Rescheduling:
        """Let a scheduled email go at another time; it lives as long after it as it would have."""

        async def reschedule(tx: Transaction) -> Rescheduling:
            if not await tx.run(emails_sql.RESCHEDULE, {"account_id": account_id, "email_id": email_id, "at": at}):
                return await _absent(tx, account_id, email_id)
            data = {"scheduled_at": at.isoformat()}
            await tx.run(emails_sql.RESCHEDULED, (account_id, email_id, uuid7(now.timestamp()), now, data))
            await write(tx, lines, now.timestamp())
            return "rescheduled"

        return await self._pool.transact(reschedule)

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[list[EmailView], bool]:
        """Newest first: the `limit` next to the one that `after` (older) or `before` (newer) names, and whether there are more."""
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


async def _absent(tx: Transaction, account_id: UUID, email_id: UUID) -> Literal["not_found", "too_late"]:
    [(exists,)] = await tx.rows(emails_sql.EXISTS, (account_id, email_id))
    return "too_late" if exists else "not_found"


def _email(row: Row) -> EmailView:
    values: list[Any] = [*row]
    values[8:13] = map(tuple, row[8:13])  # the lists of addresses
    values[14] = tuple((tag["name"], tag["value"]) for tag in row[14] or ())
    values[15] = row[15] or {}
    values[16] = StoredEnvelope.read(row[16])
    return EmailView(*values)


def _recipient(row: Row) -> RecipientView:
    number, address, waiting, event, reason, next_at, attempts, last_reply, kind, rule = row
    # Without either, its history was dropped while its email stayed: all that is known is that it waits no longer.
    return RecipientView(number, address, waiting or FINAL.get(event, "failed"), reason, next_at, attempts, last_reply, kind, rule)
