"""What is heard of an email after it was delivered: a bounce or a complaint, written down once, in one transaction with its
event, and with the suppression of an address that is no good or does not want it.

Which recipient a report is about and what it means is decided by the caller (returns/), between the look and the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.outcome import EVENTS, MOVES, Bounced, State
from mailsvc.store.events import events, suppressions
from mailsvc.store.events.events import NewEvent
from mailsvc.store.mail import dsn_requests
from mailsvc.store.mail.dsn_requests import Passed
from mailsvc.store.mail.emails import FINAL
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.settle import bounce

LOCKS = 0x6C617465  # "late": the first half of an advisory lock's name; the second one is of the email

# One report at a time for an email; a lock of its own, since emails are never updated.
LOCK = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
EMAIL = "SELECT domain_id, recipients, envelope FROM emails WHERE account_id = %s AND email_id = %s"
# Those that wait, kept as they are until the commit: an attempt that is settled now is seen as settled or as under way.
WAITING = "SELECT recipient, status, lease IS NOT NULL FROM queue WHERE account_id = %s AND email_id = %s FOR UPDATE"
TOLD = """
SELECT DISTINCT ON (recipient) recipient, type, at FROM events
WHERE account_id = %s AND email_id = %s AND recipient IS NOT NULL AND type = ANY (%s) ORDER BY recipient, event_id DESC
"""
END = "DELETE FROM queue WHERE account_id = %s AND email_id = %s AND recipient = ANY (%s) AND lease IS NULL AND status = 'uncertain'"

Heard = Literal["changed", "repeated", "early"]


@attrs.frozen
class Complained:
    """The recipient called it unwanted. `reason` is a sentence for people; `kind` and `agent` are the report's own words."""

    reason: str
    kind: str
    agent: str


@attrs.frozen
class Report:
    """What was heard about a recipient, by its number."""

    recipient: int
    what: Bounced | Complained


@attrs.define(eq=False)
class AsyncBounces:
    """`told` is called after each commit with events."""

    pool: Pool
    told: Callable[[], None] = lambda: None

    async def hear(
        self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Report]], now: datetime
    ) -> Mapping[int, Heard] | None:
        """What became of the news that `judge` makes of an email's addresses; None: there is no such email (any more).

        `repeated`: that recipient's state allows it no more, so nothing was changed. `early`: its delivery is not settled yet.
        """

        async def hear(tx: Transaction) -> Mapping[int, Heard] | None:
            key = (account_id, email_id)
            await tx.rows(LOCK, (LOCKS, str(email_id)))
            found = await tx.rows(EMAIL, key)
            if not found:
                return None
            [(domain_id, addresses, envelope)] = found
            news = judge(addresses)
            if not news:
                return {}
            states = {row[0]: ("sending" if row[2] else row[1]) for row in await tx.rows(WAITING, key)}
            newest = {row[0]: (FINAL[row[1]], row[2]) for row in await tx.rows(TOLD, (*key, [*FINAL]))}
            states = {number: state for number, (state, _) in newest.items()} | states
            heard = {each.recipient: _heard(states.get(each.recipient), each) for each in news}
            changes = {each.recipient: each for each in news if heard[each.recipient] == "changed"}.values()
            # Ids grow with time, and the newest event is what a recipient is: never older than the delivery, whatever clocks say.
            at = max([now, *(newest[each.recipient][1] + timedelta(milliseconds=1) for each in changes if each.recipient in newest)])
            await tx.run(END, (*key, [each.recipient for each in changes]))
            await events.write(tx, [_event(account_id, email_id, domain_id, each, at) for each in changes])
            await dsn_requests.late(tx, *key, envelope, [each.recipient for each in changes if _state(each) == "bounced"], at)
            for each in changes:
                address = [addresses[each.recipient]]
                if isinstance(each.what, Complained):
                    await suppressions.add(tx, account_id, address, "complaint", at, email_id, each.what.reason)
                elif each.what.suppress:
                    await suppressions.add(tx, account_id, address, "bounce", at, email_id, each.what.reply)
            return heard

        heard = await self.pool.transact(hear)
        if heard and "changed" in heard.values():
            self.told()
        return heard

    async def pass_on(self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Passed]], now: datetime) -> None:
        """What another server told of an email's recipients without changing anything goes on to whoever asked for it."""

        async def pass_on(tx: Transaction) -> None:
            for addresses, envelope in [row[1:] for row in await tx.rows(EMAIL, (account_id, email_id))]:
                await dsn_requests.pass_on(tx, account_id, email_id, envelope, judge(addresses), now)

        await self.pool.transact(pass_on)


def _state(news: Report) -> State:
    return "complained" if isinstance(news.what, Complained) else "bounced"


def _heard(state: State | None, news: Report) -> Heard:
    """What the table of moves (outcome) allows; what waits and may not move yet is to be heard again."""
    wanted = _state(news)
    if state == "sending" or (state in ("queued", "scheduled", "delayed", "uncertain") and wanted not in _late_moves(state)):
        return "early"
    return "changed" if state is not None and wanted in _late_moves(state) else "repeated"


def _late_moves(state: State) -> frozenset[State]:
    """Of those that wait, only one whose delivery is uncertain: its bounce shows that it had been delivered."""
    return MOVES[state] if state in ("delivered", "uncertain") else frozenset()


def _event(account_id: UUID, email_id: UUID, domain_id: UUID, news: Report, at: datetime) -> NewEvent:
    match news.what:
        case Complained(reason, kind, agent):
            data: dict[str, object] = {"reason": reason, "feedback_type": kind, "user_agent": agent}
        case bounced:
            data = bounce(bounced)
    return NewEvent(account_id, email_id, domain_id, news.recipient, EVENTS[_state(news)], at, data | {"late": True})
