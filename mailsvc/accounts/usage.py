"""Warns accounts' admins when 80 and 100 % of a quota are used, and provides figures for the operator. Starts what watches accounts.

Counting: quota. Holds and ramps: abuse. Each process that accepts mail runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.accounts.abuse import EVERY as RATES_EVERY
from mailsvc.accounts.abuse import AbuseWatch, Mail
from mailsvc.accounts.domain_notices import EVERY as DOMAINS_EVERY
from mailsvc.accounts.domain_notices import DomainNotices
from mailsvc.accounts.operator_access import EVERY as NOTICES_EVERY
from mailsvc.accounts.operator_access import AccessNotices
from mailsvc.accounts.operator_alerts import EVERY as ALERTS_EVERY
from mailsvc.accounts.operator_alerts import OperatorAlerts
from mailsvc.accounts.quota import IDLE, Quotas
from mailsvc.clock import utc
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.settings import plans
from mailsvc.settings.abuse import Abuse
from mailsvc.settings.plans import WORDS, Plans, ends
from mailsvc.store.domains.notices import DomainNoticeStore
from mailsvc.store.in_turn import all_in_turn, in_turn
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.operator_alerts import AlertStore
from mailsvc.store.people.quota import Near, Period, Quota
from mailsvc.store.postgres.pool import Pool

EVERY = 30.0  # seconds
LEVELS = (80, 100)  # percent
LISTED = 50  # accounts that are listed individually in the figures

log = Logger()


@attrs.define(eq=False)
class Warnings:
    """Warns admins once in each period, and again about a higher limit. Idempotency keys prevent duplicates from several processes."""

    store: Quota
    mail: Mail
    clock: Any
    limits: Callable[[str | None, int | None], Mapping[Period, int]]  # of a plan and a ramp
    near: Sequence[Near] = attrs.field(default=(), init=False)  # as of the last check

    async def send_due(self) -> None:
        now = utc(self.clock)
        found = await self.store.near(plans.begins("day", now), plans.begins("month", now), LEVELS[0])
        # Until the next lease, the others have the limit of a former plan.
        self.near = [near for near in found if self.limits(near.plan, near.ramp).get(near.period) == near.most]
        await in_turn([partial(self._warn, near, reached(near), now) for near in self.near if near.warned < reached(near)])

    async def _warn(self, near: Near, level: int, now: datetime) -> None:
        log.info("account {number} has used {percent} % of its {period}", number=near.number, percent=level, period=near.period)
        subject, text = compose(near, level, now)
        key = f"quota/{near.account_id}/{near.period}/{near.starts}/{near.most}/{level}"
        if await all_in_turn([partial(self.mail.send, to, subject, text, f"{key}/{to}") for to in near.admins]):
            await self.store.warned(near, level)


def reached(near: Near) -> int:
    """The highest level that was reached."""
    return max(level for level in LEVELS if near.taken * 100 >= near.most * level)


def compose(near: Near, level: int, now: datetime) -> tuple[str, str]:
    """Subject and text."""
    resets, kind = f"{ends(near.period, now):%Y-%m-%d %H:%M} UTC", WORDS[near.period]
    if level >= 100:
        subject = f"Your {kind} email quota is used up"
        effect = f"New emails are rejected until the quota resets at {resets}. Emails that were already accepted will be sent."
    else:
        subject = f"{level} % of your {kind} email quota is used"
        effect = f"Once it is used up, new emails are rejected until the quota resets at {resets}."
    used = f"The account {near.name} has used {near.taken:,} of the {near.most:,} recipients of its {kind} quota."
    return subject, f"{used}\n\n{effect}\n\nEach address in To, Cc and Bcc counts as one recipient.\n"


@attrs.define(eq=False)
class Accounting:
    """What watches accounts, as tap starts it: quotas, abuse, mail to the operator and to admins. Listeners use `quotas`."""

    quotas: Quotas
    warnings: Warnings
    abuse: AbuseWatch
    alerts: OperatorAlerts
    notices: AccessNotices
    domains: DomainNotices

    @classmethod
    def of(cls, pool: Pool, clock: Any, settings: Plans, mail: Mail, rules: Abuse, operator: str | None = None) -> Accounting:
        """`operator`: where to mail the operator if the rules do not say. Raises SettingsError if the plans are invalid."""
        store, to = Quota(pool), rules.notify or operator
        watch = AbuseWatch(AbuseStore(pool), mail, clock, rules, to)
        alerts = OperatorAlerts(AlertStore(pool), mail, clock, to)
        quotas, notices = Quotas(store, clock, plans.load(settings), settings.default), AccessNotices.of(pool, clock, mail)
        domains = DomainNotices(DomainNoticeStore(pool), mail, clock)
        return cls(quotas, Warnings(store, mail, clock, quotas.limits), watch, alerts, notices, domains)

    def start(self, clock: Any, opened: Opened) -> None:
        """Started before the listeners, so that unused quota is returned after they are closed."""
        opened.add("returning unused quotas", lambda: self.quotas.give_back(idle=0.0))
        opened.add("the quota loop", every(clock, IDLE, "returning unused quotas", self.quotas.give_back))
        opened.add("the quota warnings", every(clock, EVERY, "sending quota warnings", self.warnings.send_due))
        opened.add("the watch over rates", every(clock, RATES_EVERY, "computing accounts' bounce and complaint rates", self.abuse.check))
        opened.add("the operator's alerts", every(clock, ALERTS_EVERY, "mailing alerts to the operator", self.alerts.send_due))
        opened.add("notices of the operator's access", every(clock, NOTICES_EVERY, "mailing admins about access", self.notices.send_due))
        opened.add("notices of domains that fail", every(clock, DOMAINS_EVERY, "mailing admins about domains", self.domains.send_due))
