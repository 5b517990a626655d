"""Runs the checks that are due: after each notification and at least every 30 seconds, a few at a time.

Each account gets a share of the concurrent checks, so its slow nameservers only delay its own domains.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from twisted.application.service import Service
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.clock import held
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.values import Domain
from mailsvc.store.postgres.notifications import Notifier

CHANNEL = "domains"  # of notifications
POLL = 30.0
CONCURRENT = 20
PER_ACCOUNT = 4
CHECK_SECONDS = 120.0  # limit for a whole check; a check that takes longer is due again when its lease ends


class CheckSchedule(Service):
    """The service. Checks that a crashed process leaves behind are due again after a few minutes."""

    name = "domains"
    log = Logger()

    def __init__(self, checks: DomainChecks, maintenance: DomainMaintenance, notifications: Notifier, clock: Any) -> None:
        self._checks, self._maintenance, self._clock = checks, maintenance, clock
        self._more = False  # whether the last poll found any, so there may be more
        self._running: Counter[UUID] = Counter()  # running checks by account
        self._finished: Deferred[None] | None = None
        self._loop = PollingLoop(clock, "looking for domains to check", self._start_due, POLL)
        notifications.listen(CHANNEL, self._loop.wake)

    def startService(self) -> None:
        super().startService()
        self._loop.start()

    def stopService(self) -> Deferred[None]:
        """Finish the running checks; other processes take over the rest."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._loop.stop()
        if self._running.total():
            self._finished = Deferred()
            await self._finished

    async def _start_due(self) -> None:
        free = CONCURRENT - self._running.total()
        if free <= 0 or held(self._clock):
            return
        found = list(await self._checks.due(free, PER_ACCOUNT, dict(self._running)))
        self._more = bool(found)
        self._running.update(domain.account_id for domain in found)
        for domain in found:
            Deferred.fromCoroutine(self._check(domain)).addBoth(self._on_end, domain.account_id)
        if found:
            self._loop.wake()

    async def _check(self, domain: Domain) -> None:
        try:
            await Deferred.fromCoroutine(self._maintenance.check(domain)).addTimeout(CHECK_SECONDS, self._clock)
        except TimeoutError:
            self.log.info("checking {domain} timed out after {seconds:g} s", domain=domain.name, seconds=CHECK_SECONDS)
        except Exception:
            self.log.failure("checking {domain} failed", domain=domain.name)

    def _on_end(self, _: object, account_id: UUID) -> None:
        """Start the next check in its place."""
        self._running[account_id] -= 1
        self._running += Counter()  # drops accounts without checks
        if self._more:
            self._loop.wake()
        if self._finished is not None and not self._running.total():
            self._finished.callback(None)
