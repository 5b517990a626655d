"""Mails the operator what to do when a source address gets onto a block list, and when mail that the service sent fails DMARC.

Each event is mailed once: the facts are in the database, and an idempotency key prevents duplicates of several processes. Each process that
accepts mail runs this. Held accounts: abuse. What is shown and counted besides: monitoring.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.accounts.abuse import Mail
from mailsvc.clock import utc
from mailsvc.store.in_turn import in_turn
from mailsvc.store.people.operator_alerts import AlertStore, FailingDomain, ListedSource

EVERY = 60.0  # seconds
LATELY = timedelta(hours=20)  # events that are mailed; idempotency keys are kept for longer
MOST = 20  # events of each kind that are mailed in this time

log = Logger()


@attrs.frozen
class Alert:
    """An email to the operator. `key` is the same for everything that counts as one event."""

    key: str
    subject: str
    text: str


@attrs.define(eq=False)
class OperatorAlerts:
    """`to`: the operator's address. None: nothing is mailed."""

    store: AlertStore
    mail: Mail
    clock: Any
    to: str | None
    _sent: frozenset[str] = attrs.field(default=frozenset(), init=False)  # of the current events

    async def send_due(self) -> None:
        if self.to is None:
            return
        now = utc(self.clock)
        alerts = [about_source(each) for each in await self.store.listed(now - LATELY, now, MOST)]
        alerts += [about_domain(each) for each in await self.store.failing(now - LATELY, MOST)]
        self._sent &= {alert.key for alert in alerts}
        await in_turn([partial(self._send, alert) for alert in alerts if alert.key not in self._sent])

    async def _send(self, alert: Alert) -> None:
        if await self.mail.send(self.to, alert.subject, alert.text, alert.key):
            log.info("alert mailed to the operator: {subject}", subject=alert.subject)
            self._sent |= {alert.key}


def about_source(source: ListedSource) -> Alert:
    """At most one a day for an address."""
    key = f"listed/{source.region}/{source.address}/{source.listed_at:%Y-%m-%d}"
    return Alert(key, f"{source.address} is on a block list", "\n".join(_about_source(source)))


def _about_source(source: ListedSource) -> Iterator[str]:
    yield f"The source address {source.address} (region {source.region}, pool {source.pool or 'default'}) is on these block lists:"
    yield ""
    yield from (f"    {zone}{_page(zone)}" for zone in source.listed)
    yield ""
    yield f"This was found at {source.listed_at:%Y-%m-%d %H:%M} UTC. The address sends no mail until it is removed from the lists."
    yield "The other addresses of its pool take over; if there are none, mail waits."
    yield ""
    yield "What to do:"
    yield "1. Find the reason on the list's website."
    yield "2. Stop the mail that caused it. To hold an account: mailsvc queue pause --account NUMBER"
    yield "3. Request removal on the list's website."
    yield ""
    yield "The lists are asked every hour, so the address continues within an hour after its removal."
    yield "To see all addresses: mailsvc sources list"
    yield ""


def _page(zone: str) -> str:
    return ": https://check.spamhaus.org/" if zone.endswith("spamhaus.org") else ""


def about_domain(failing: FailingDomain) -> Alert:
    """Once, until a week has passed without such a report."""
    key = f"dmarc/{failing.domain_id}/{failing.at:%Y-%m-%d}"
    return Alert(key, f"Mail from {failing.domain} fails DMARC", "\n".join(_about_domain(failing)))


def _about_domain(failing: FailingDomain) -> Iterator[str]:
    yield failing.what
    yield ""
    yield f"The domain is {failing.domain}, of the account {failing.account} (number {failing.number}). Receivers can reject such mail, or"
    yield "file it as spam."
    yield ""
    yield "What to do:"
    yield f"1. See which addresses failed, on the domain's page, and check its DNS records: mailsvc domain check {failing.domain}"
    yield "2. If a DKIM or SPF record is missing or wrong, its owner has to correct it. The SPF record of a region has to contain"
    yield "   all of its source addresses."
    yield "3. If the records are right, something changes messages after they are signed. Send one to a mailbox elsewhere, and read"
    yield "   Authentication-Results in it."
    yield ""
    yield "Further reports about this domain are not mailed until a week has passed without one."
    yield ""
