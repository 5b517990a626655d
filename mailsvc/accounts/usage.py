"""Keeps to the plans of accounts: what is left of them, the word to their admins at 80 and 100 %, and the figures for the operator.

How it is counted: quota.py. One of these in each process that lets mail in.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Protocol

import attrs
from twisted.logger import Logger

from mailsvc.accounts.quota import IDLE, Quotas
from mailsvc.clock import utc
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.settings import plans
from mailsvc.settings.plans import WORDS, Plans, ends
from mailsvc.store.people.quota import Near, Quota
from mailsvc.store.postgres.pool import Pool

EVERY = 30.0  # seconds
LEVELS = (80, 100)  # percent
TOLD = 50  # accounts that are told apart in the figures

log = Logger()


class Store(Protocol):
    """store/people/quota"""

    async def near(self, day: date, month: date, percent: int) -> Sequence[Near]: ...
    async def warned(self, near: Near, percent: int) -> None: ...


class Mail(Protocol):
    """system_mail.SystemMail"""

    async def send(self, to: str | None, subject: str, text: str, key: str) -> bool: ...


@attrs.define(eq=False)
class Warnings:
    """Tells admins once in each period, whoever of several processes does it: the mails carry an idempotency key."""

    store: Store
    mail: Mail
    clock: Any
    near: Sequence[Near] = attrs.field(default=(), init=False)  # as of the last round

    async def tell(self) -> None:
        now = utc(self.clock)
        self.near = await self.store.near(plans.begins("day", now), plans.begins("month", now), LEVELS[0])
        for near in self.near:
            level = reached(near)
            if near.warned < level and await self._tell(near, level, now):
                await self.store.warned(near, level)

    async def _tell(self, near: Near, level: int, now: datetime) -> bool:
        log.info("account {number} has used {percent} % of its {period}", number=near.number, percent=level, period=near.period)
        subject, text = written(near, level, now)
        dealt = [
            await self.mail.send(to, subject, text, f"quota/{near.account_id}/{near.period}/{near.starts}/{level}/{to}")
            for to in near.admins
        ]
        return all(dealt)


def reached(near: Near) -> int:
    """The highest level that it is at or above."""
    return max(level for level in LEVELS if near.taken * 100 >= near.most * level)


def written(near: Near, level: int, now: datetime) -> tuple[str, str]:
    """Subject and text."""
    again, kind = f"{ends(near.period, now):%Y-%m-%d %H:%M} UTC", WORDS[near.period]
    if level >= 100:
        subject = f"Your {kind} email quota is used up"
        then = f"Further emails are refused until {again}, when it counts anew. What was accepted before is sent."
    else:
        subject = f"{level} % of your {kind} email quota is used"
        then = f"When all of it is used, further emails are refused until {again}, when it counts anew."
    used = f"The account {near.name} has used {near.taken:,} of the {near.most:,} recipients of its {kind} quota."
    return subject, f"{used}\n\n{then}\n\nEvery address in To, Cc and Bcc counts as one recipient.\n"


@attrs.define(eq=False)
class Accounting:
    """What tap.py starts: `quotas` is for the doors."""

    quotas: Quotas
    warnings: Warnings

    @classmethod
    def of(cls, pool: Pool, clock: Any, settings: Plans, mail: Mail) -> Accounting:
        """Raises SettingsError when the plans are of no use."""
        store = Quota(pool)
        return cls(Quotas(store, clock, plans.load(settings), settings.default), Warnings(store, mail, clock))

    def start(self, clock: Any, opened: Opened) -> None:
        """Opened before the doors, so that what is left over goes back after they are closed."""
        opened.add("what is left of quotas", lambda: self.quotas.give_back(idle=0.0))
        opened.add("the round of quotas", every(clock, IDLE, "giving back quotas", self.quotas.give_back))
        opened.add("the word of quotas", every(clock, EVERY, "telling accounts of their quotas", self.warnings.tell))
