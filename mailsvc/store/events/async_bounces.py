"""Records bounces and complaints that arrive after delivery, each once, in one transaction with its event and the suppression.

A bounce also takes back that the recipient was counted as delivered. A complaint does not: the email was delivered.

The caller (bounces/) decides which recipients a report is about and what it means, once the email has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.outcome import EVENTS, MOVES, Bounced, State
from mailsvc.store.events import events, suppressions
from mailsvc.store.events.event_data import Bounce, Complaint
from mailsvc.store.events.events import NewEvent
from mailsvc.store.mail import dsn_requests
from mailsvc.store.mail.dsn_requests import ForwardedReport
from mailsvc.store.mail.emails import FINAL
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres.pool import Pool, Transaction

LOCKS = 0x6C617465  # first key of the advisory locks, ASCII "late"; the second key is the email

# One report at a time for each email. An advisory lock, because rows of emails are never updated.
LOCK = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
EMAIL = "SELECT domain_id, recipients, envelope FROM emails WHERE account_id = %s AND email_id = %s"
# Locked until the commit: an attempt that is being settled meanwhile is seen either as settled or as in progress.
QUEUED = "SELECT recipient, status, lease IS NOT NULL FROM queue WHERE account_id = %s AND email_id = %s FOR UPDATE"
LATEST = """
SELECT DISTINCT ON (recipient) recipient, type, at FROM events
WHERE account_id = %s AND email_id = %s AND recipient IS NOT NULL AND type = ANY (%s) ORDER BY recipient, event_id DESC
"""
DEQUEUE = "DELETE FROM queue WHERE account_id = %s AND email_id = %s AND recipient = ANY (%s) AND lease IS NULL AND status = 'uncertain'"

# changed: recorded. repeated: the recipient's state does not allow it, nothing changed. early: the delivery is not settled yet.
Recorded = Literal["changed", "repeated", "early"]


@attrs.frozen
class Complained:
    """The recipient reported the email as spam. `reason` is a sentence for people; `kind` and `agent` are quoted from the report."""

    reason: str
    kind: str
    agent: str


@attrs.frozen
class Report:
    """What was reported about a recipient, given by number."""

    recipient: int
    outcome: Bounced | Complained


@attrs.define(eq=False)
class AsyncBounces:
    """`on_events` is called after each commit that wrote events."""

    pool: Pool
    on_events: Callable[[], None] = lambda: None

    async def record(
        self, account_id: UUID, email_id: UUID, interpret: Callable[[Sequence[str]], Sequence[Report]], now: datetime
    ) -> Mapping[int, Recorded] | None:
        """Record the reports that `interpret` returns for the email's addresses; the result for each recipient.

        None if the email does not exist (any more).
        """

        async def record(tx: Transaction) -> Mapping[int, Recorded] | None:
            key = (account_id, email_id)
            await tx.rows(LOCK, (LOCKS, str(email_id)))
            found = await tx.rows(EMAIL, key)
            if not found:
                return None
            [(domain_id, addresses, envelope)] = found
            reports = interpret(addresses)
            if not reports:
                return {}
            queued: dict[int, State] = {number: ("sending" if leased else status) for number, status, leased in await tx.rows(QUEUED, key)}
            latest = {number: (FINAL[kind], at) for number, kind, at in await tx.rows(LATEST, (*key, [*FINAL]))}
            states: dict[int, State] = {number: state for number, (state, _) in latest.items()} | queued
            recorded = {each.recipient: _result(states.get(each.recipient), each) for each in reports}
            changes = {each.recipient: each for each in reports if recorded[each.recipient] == "changed"}.values()
            # A recipient's latest event is its state, and event IDs grow with time: never date this one before the delivery.
            at = max([now, *(latest[each.recipient][1] + timedelta(milliseconds=1) for each in changes if each.recipient in latest)])
            await tx.run(DEQUEUE, (*key, [each.recipient for each in changes]))
            await events.write(tx, [_event(account_id, email_id, domain_id, each, at) for each in changes])
            bounced = [each.recipient for each in changes if _state(each) == "bounced"]
            delivered = [latest[number][1] for number in bounced if states[number] == "delivered"]
            await events.uncount(tx, *key, domain_id, EVENTS["delivered"], delivered)
            await dsn_requests.late(tx, *key, StoredEnvelope.read(envelope), bounced, at)
            for each in changes:
                address = [addresses[each.recipient]]
                if isinstance(each.outcome, Complained):
                    await suppressions.add(tx, account_id, address, "complaint", at, email_id, each.outcome.reason)
                elif each.outcome.suppress:
                    await suppressions.add(tx, account_id, address, "bounce", at, email_id, each.outcome.reply)
            return recorded

        recorded = await self.pool.transact(record)
        if recorded and "changed" in recorded.values():
            self.on_events()
        return recorded

    async def forward(
        self, account_id: UUID, email_id: UUID, interpret: Callable[[Sequence[str]], Sequence[ForwardedReport]], now: datetime
    ) -> None:
        """Queue another server's reports of delays and deliveries for the submitter who requested them."""

        async def forward(tx: Transaction) -> None:
            for _, addresses, envelope in await tx.rows(EMAIL, (account_id, email_id)):
                await dsn_requests.forward(tx, account_id, email_id, StoredEnvelope.read(envelope), interpret(addresses), now)

        await self.pool.transact(forward)


def _state(report: Report) -> State:
    return "complained" if isinstance(report.outcome, Complained) else "bounced"


def _result(state: State | None, report: Report) -> Recorded:
    """Apply outcome.MOVES. A recipient that is still queued and may not change yet has to be reported again later."""
    wanted = _state(report)
    if state == "sending" or (state in ("queued", "scheduled", "delayed", "uncertain") and wanted not in _async_moves(state)):
        return "early"
    return "changed" if state is not None and wanted in _async_moves(state) else "repeated"


def _async_moves(state: State) -> frozenset[State]:
    """A queued recipient may change only if its delivery is uncertain: the bounce proves that the email had been accepted."""
    return MOVES[state] if state in ("delivered", "uncertain") else frozenset()


def _event(account_id: UUID, email_id: UUID, domain_id: UUID, report: Report, at: datetime) -> NewEvent:
    match report.outcome:
        case Complained(reason, kind, agent):
            data = Complaint(reason, kind, agent).stored()
        case bounced:
            data = Bounce.of(bounced, late=True).stored()
    return NewEvent(account_id, email_id, domain_id, report.recipient, EVENTS[_state(report)], at, data)
