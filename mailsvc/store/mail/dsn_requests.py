"""DSNs that are still to be sent (RFC 3461): written with the event, taken in groups, deleted when sent.

Each group keeps the report ID it was first taken with, so that a second try sends the same report.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid5

import attrs
from twisted.logger import Logger

from mailsvc.store.events.event_data import EventData, read
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres.pool import Pool, Transaction

log = Logger()

SUCCESS, FAILURE, DELAY = 1, 2, 4
BITS = {"SUCCESS": SUCCESS, "FAILURE": FAILURE, "DELAY": DELAY, "NEVER": 0}
RETRY_AFTER = timedelta(seconds=60)  # when another process may take them
FAILED_AGAIN = timedelta(hours=1)  # those that will probably fail again
REMEMBERED = timedelta(days=30)  # for how long forwarded reports of other servers are not repeated

_INSERT = """
    INSERT INTO notices (account_id, email_id, recipient, event_id, next_at)
    SELECT account_id, email_id, recipient, event_id, at + interval '1 second' FROM {events}
    WHERE {condition} AND notify & (
        CASE type WHEN 'email.delivered' THEN 1 WHEN 'email.bounced' THEN 2 WHEN 'email.failed' THEN 2 WHEN 'email.suppressed' THEN 2
        WHEN 'email.delivery_delayed' THEN 4 ELSE 0 END
    ) <> 0
"""

_LATE = """
INSERT INTO notices (account_id, email_id, recipient, event_id, next_at)
SELECT account_id, email_id, recipient, event_id, at + interval '1 second' FROM events
WHERE account_id = %s AND email_id = %s AND recipient = ANY (%s) AND at = %s AND type = 'email.bounced' AND data ? 'late'
"""
_FORWARD = """
INSERT INTO notices (account_id, email_id, recipient, event_id, next_at, told)
VALUES (%s, %s, %s, %s, %s + interval '1 second', jsonb_build_object('action', %s, 'said', %s, 'reporter', %s)) ON CONFLICT DO NOTHING
"""
TAKE = """
WITH due AS MATERIALIZED (
    SELECT email_id, recipient, event_id FROM notices WHERE next_at <= %s ORDER BY next_at LIMIT %s FOR UPDATE SKIP LOCKED
), named AS MATERIALIZED (
    SELECT email_id, gen_random_uuid() AS report FROM (SELECT DISTINCT email_id FROM due) d
)
UPDATE notices n SET next_at = %s, report = coalesce(n.report, named.report)
FROM due JOIN named USING (email_id)
WHERE n.email_id = due.email_id AND n.recipient = due.recipient AND n.event_id = due.event_id
RETURNING n.report, n.account_id, n.email_id, n.recipient, n.event_id, n.told
"""
READ = """
SELECT e.domain_id, d.name, e.message_id, e.sender, e.created_at, e.envelope, e.recipients
FROM emails e JOIN domains d ON d.id = e.domain_id WHERE e.account_id = %s AND e.email_id = %s
"""
# With the server of the last attempt. A bounce that was reported after the delivery came from elsewhere.
EVENTS = """
SELECT e.recipient, e.type, e.at, e.data, CASE WHEN e.data ? 'late' THEN NULL ELSE (
    SELECT a.host FROM attempts a
    WHERE a.account_id = e.account_id AND a.email_id = e.email_id AND e.recipient = ANY (a.recipients) AND a.started_at <= e.at
    ORDER BY a.attempt_id DESC LIMIT 1
) END
FROM events e WHERE e.account_id = %s AND e.email_id = %s AND e.event_id = ANY (%s::uuid[]) ORDER BY e.recipient
"""
DONE = "DELETE FROM notices WHERE report = %s AND told IS NULL"
DONE_WITH = "UPDATE notices SET next_at = 'infinity' WHERE report = %s"
POSTPONE = "UPDATE notices SET next_at = %s WHERE report = %s"
GONE = "DELETE FROM notices WHERE report = %s"
SWEEP = "DELETE FROM notices WHERE next_at = 'infinity' AND email_id < %s"


@attrs.frozen
class ReportItem:
    """What to report about a recipient: an event, or with the type "forwarded" the report of another server.

    `host` is the server that was tried last, "" if none was reached.
    """

    address: str
    recipient: int
    type: str
    at: datetime
    data: EventData | ForwardedReport
    host: str = ""


@attrs.frozen
class ForwardedReport:
    """What another server that accepted NOTIFY reported about a recipient, by number. `said` begins with a reply or a status."""

    recipient: int
    action: Literal["delivered", "relayed", "expanded", "delayed"]
    said: str
    reporter: str  # the server, "" if unknown


@attrs.frozen
class Notice:
    """A DSN to send about an email. `report` is the same each time it is taken."""

    report: UUID
    account_id: UUID
    email_id: UUID
    domain_id: UUID
    domain: str
    message_id: str
    sender: str
    created_at: datetime
    envelope: StoredEnvelope
    items: tuple[ReportItem, ...]


def notify_bits(envelope: StoredEnvelope) -> list[int | None] | None:
    """The NOTIFY options per recipient, for the rows in the queue; None without any. Without a sender there are no DSNs."""
    if not (envelope.notify and envelope.sender):
        return None
    return [None if words is None else sum(BITS[word] for word in words.split(",")) for words in envelope.notify]


def insertion(events: str, condition: str = "true") -> str:
    """SQL that inserts the requested DSNs for the events in the relation `events`. Part of statements that write events."""
    return _INSERT.format(events=events, condition=condition).strip()


async def late(
    tx: Transaction, account_id: UUID, email_id: UUID, envelope: StoredEnvelope, recipients: Sequence[int], at: datetime
) -> None:
    """Request DSNs for asynchronous bounces recorded at `at`, for recipients with NOTIFY=FAILURE."""
    notify = notify_bits(envelope) or []
    numbers = [number for number in recipients if number < len(notify) and (notify[number] or 0) & FAILURE]
    if numbers:
        await tx.run(_LATE, (account_id, email_id, numbers, at))


async def forward(
    tx: Transaction, account_id: UUID, email_id: UUID, envelope: StoredEnvelope, said: Sequence[ForwardedReport], at: datetime
) -> None:
    """Request DSNs that forward reports of other servers, if requested: one per recipient for success and one for delay."""
    notify = notify_bits(envelope) or []
    for each in said:
        what = DELAY if each.action == "delayed" else SUCCESS
        if each.recipient < len(notify) and (notify[each.recipient] or 0) & what:
            once = uuid5(email_id, f"{each.recipient} {what}")
            await tx.run(_FORWARD, (account_id, email_id, each.recipient, once, at, each.action, each.said, each.reporter))


class Notices:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def take(self, now: datetime, limit: int = 500) -> Sequence[Notice]:
        """Take due DSNs; nobody else takes them within a minute. Those that cannot be read are left out."""
        groups: dict[tuple[UUID, UUID, UUID], list[tuple[int, UUID, Any]]] = {}
        for report, account_id, email_id, *what in await self._pool.rows(TAKE, (now, limit, now + RETRY_AFTER)):
            groups.setdefault((report, account_id, email_id), []).append((what[0], what[1], what[2]))
        found: list[Notice] = []
        for (report, account_id, email_id), rows in groups.items():
            try:
                notice = await self._read(report, account_id, email_id, rows, now)
            except (AttributeError, LookupError, TypeError, ValueError):  # the others would wait behind it for ever
                log.failure("A DSN about {email_id} could not be read and is tried again in an hour", email_id=str(email_id))
                await self.postpone(report, now)
            else:
                found += [] if notice is None else [notice]
        return found

    async def done(self, report: UUID) -> None:
        """It was sent, or there is nobody to send it to."""
        await self._pool.run(DONE, (report,))
        await self._pool.run(DONE_WITH, (report,))

    async def postpone(self, report: UUID, now: datetime) -> None:
        """It failed for a reason of its own."""
        await self._pool.run(POSTPONE, (now + FAILED_AGAIN, report))

    async def sweep(self, now: datetime) -> None:
        """Delete forwarded reports of a month ago."""
        await self._pool.run(SWEEP, (uuid7_floor(now - REMEMBERED),))

    async def _read(
        self, report: UUID, account_id: UUID, email_id: UUID, taken: list[tuple[int, UUID, Any]], now: datetime
    ) -> Notice | None:
        rows = await self._pool.rows(READ, (account_id, email_id))
        if not rows:  # no longer kept
            await self._pool.run(GONE, (report,))
            return None
        domain_id, domain, message_id, sender, created_at, envelope, recipients = rows[0]
        events = await self._pool.rows(EVENTS, (account_id, email_id, [event_id for _, event_id, forwarded in taken if forwarded is None]))
        items = [
            ReportItem(recipients[recipient], recipient, type, at, read(type, data or {}), host or "")
            for recipient, type, at, data, host in events
        ]
        forwarded = [ForwardedReport(number, **data) for number, _, data in taken if data is not None]
        items += [ReportItem(recipients[each.recipient], each.recipient, "forwarded", now, each) for each in forwarded]
        items.sort(key=lambda each: each.recipient)
        stored = StoredEnvelope.read(envelope)
        return Notice(report, account_id, email_id, domain_id, domain, message_id, sender, created_at, stored, tuple(items))
