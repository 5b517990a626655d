"""Protects the reputation of all customers from the mail of one.

Holds the mail of accounts with many bounces or complaints, and raises the limits of new accounts.

The rates come from the hourly counts, not from single emails. A held account's mail is still accepted; it waits with the reason until the
operator releases it. Each process that accepts mail runs this; the second one finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.settings.abuse import Abuse
from mailsvc.store.in_turn import all_in_turn, in_turn
from mailsvc.store.people.abuse import AbuseStore, Counts, Held
from mailsvc.store.people.audit import SERVICE, Line

EVERY = 60.0  # seconds
RAMPS_EVERY = timedelta(minutes=10)  # most accounts can have a limit, because small ones keep their first one
LATELY = timedelta(hours=3)  # an account without a new bounce or complaint in this time is not examined
STEP = timedelta(days=1)  # between two steps of a ramp
FEW = 5  # bounces or complaints that are too few to hold anyone

log = Logger()


class Mail(Protocol):
    """system_mail.SystemMail"""

    async def send(self, to: str | None, subject: str, text: str, key: str) -> bool: ...
    async def account(self) -> UUID | None: ...


def excess(counts: Counts, rules: Abuse, share: float = 1.0) -> str | None:
    """Why the rates are too high, as a sentence that says what to do; None if they are not. `share`: of the limits in the settings."""
    finished = counts.delivered + counts.bounced
    if finished < rules.volume:
        return None
    days = f"the last {rules.days} days" if rules.days > 1 else "the last day"
    if counts.complained >= FEW and rules.complaint_rate and counts.delivered:
        rate = 100 * counts.complained / counts.delivered
        if rate >= share * rules.complaint_rate:
            return (
                f"{rate:.2f} % of the recipients of this account's mail complained in {days}; the limit is {rules.complaint_rate:g} %. "
                "Send only to people who asked for your mail, and make it easy to unsubscribe."
            )
    if counts.permanent >= FEW and rules.bounce_rate:
        rate = 100 * counts.permanent / finished
        if rate >= share * rules.bounce_rate:
            return (
                f"{rate:.1f} % of this account's recipients bounced permanently in {days}; the limit is {rules.bounce_rate:g} %. "
                "Remove addresses that don't exist from your lists."
            )
    return None


def held_reason(why: str) -> str:
    """The reason that is shown for each held email."""
    return f"The account's mail is on hold. {why} Then ask the operator to release it."


def next_step(counts: Counts, rules: Abuse) -> int | None:
    """The next limit of a new account: the present one if it has to wait, None after the last step."""
    assert counts.ramp is not None
    if not rules.ramp:
        return None
    if counts.lately < counts.ramp / 10 or excess(counts, rules, 0.5) is not None:
        return counts.ramp
    return next((step for step in rules.ramp if step > counts.ramp), None)


@attrs.define(eq=False)
class AbuseWatch:
    """`operator`: the address that held accounts are reported to."""

    store: AbuseStore
    mail: Mail
    clock: Any
    rules: Abuse
    operator: str | None = None
    held: Sequence[Held] = attrs.field(default=(), init=False)  # as of the last check
    ramps: int = attrs.field(default=0, init=False)
    _ramps_at: datetime | None = attrs.field(default=None, init=False)  # when they were looked at last

    async def check(self) -> None:
        now = utc(self.clock)
        since = now - timedelta(days=self.rules.days)
        work = [partial(self._hold_all, since, now)] if self.rules.bounce_rate or self.rules.complaint_rate else []
        if self._ramps_at is None or abs(now - self._ramps_at) >= RAMPS_EVERY:
            work.append(partial(self._raise_ramps, since, now))
        await in_turn([*work, partial(self._notify_all, now)])

    async def _hold_all(self, since: datetime, now: datetime) -> None:
        own = await self.mail.account()  # a hold of it would stop the notifications
        suspects = await self.store.suspects(since, max(since, now - LATELY), now)
        await in_turn([partial(self._hold, counts, now) for counts in suspects if counts.account_id != own])

    async def _hold(self, counts: Counts, now: datetime) -> None:
        why = excess(counts, self.rules)
        if why is not None:
            line = Line(counts.account_id, None, None, SERVICE, "", "mail held", why)
            if await self.store.hold(counts.account_id, held_reason(why), now, line):
                log.warn("The mail of account {number} is held: {why}", number=counts.number, why=why)

    async def _raise_ramps(self, since: datetime, now: datetime) -> None:
        await in_turn([partial(self._raise_ramp, counts, now) for counts in await self.store.ramped(since, now - STEP, now)])
        self._ramps_at = now

    async def _raise_ramp(self, counts: Counts, now: datetime) -> None:
        assert counts.ramp is not None
        step = next_step(counts, self.rules)
        if step != counts.ramp:
            await self.store.raise_ramp(counts.account_id, counts.ramp, step, now)
            log.info("account {number} may send to {step} recipients per day", number=counts.number, step=step or "any number of")

    async def _notify_all(self, now: datetime) -> None:
        self.held, self.ramps = await self.store.held(now), await self.store.ramps()
        await in_turn([partial(self._notify, held) for held in self.held if not held.notified])

    async def _notify(self, held: Held) -> None:
        key = f"hold/{held.account_id}/{held.at.isoformat()}"
        sends = [partial(self.mail.send, to, *for_admins(held), f"{key}/{to}") for to in held.admins]
        if await all_in_turn([*sends, partial(self.mail.send, self.operator, *for_operator(held), f"{key}/operator")]):
            await self.store.notified(held)


def for_admins(held: Held) -> tuple[str, str]:
    """Subject and text."""
    text = (
        f"The mail of the account {held.name} has been on hold since {held.at:%Y-%m-%d %H:%M} UTC.\n\n{held.reason}\n\n"
        "New emails are accepted and queued; nothing is sent until the hold ends. "
        "An email that waits too long expires and is reported as failed.\n"
    )
    return "Your email is on hold", text


def for_operator(held: Held) -> tuple[str, str]:
    """Subject and text."""
    text = (
        f"The mail of the account {held.name} (number {held.number}) has been on hold since {held.at:%Y-%m-%d %H:%M} UTC.\n\n"
        f"{held.reason}\n\n"
        f"To release it: mailsvc account release {held.number}\nTo exempt it from now on: mailsvc account trust {held.number}\n"
    )
    return f"Account {held.number} is on hold", text
