"""When domains are checked: those that are due, after each notification and at least every half minute, a few at a time.

No account gets all places: its slow nameservers delay only its own domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from twisted.application.service import Service
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.clock import held
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.domains.values import Domain
from mailsvc.store.postgres.notifications import Notifier

CHANNEL = "domains"  # of notifications
POLL = 30.0
AT_ONCE = 20
SHARE = 4  # of them for one account
PATIENCE = 120.0  # seconds for a whole check; what does not end in time is due again when its lease ends


class Checks(Protocol):
    async def due(self, limit: int, share: int, busy: Mapping[UUID, int]) -> Sequence[Domain]: ...


class Care(Protocol):
    async def look_after(self, domain: Domain) -> Domain | None: ...


class Rounds(Service):
    """Runs while the service runs; what a process that dies leaves behind is due again after some minutes."""

    name = "domains"
    log = Logger()

    def __init__(self, checks: Checks, care: Care, notifications: Notifier, clock: Any) -> None:
        self._checks, self._care, self._clock = checks, care, clock
        self._more = False  # whether the last poll found something, so that another may find more
        self._under_way: Counter[UUID] = Counter()  # checks of each account
        self._finished: Deferred[None] | None = None
        self._loop = PollingLoop(clock, "looking for domains to check", self._look, POLL)
        notifications.listen(CHANNEL, self._loop.wake)

    def startService(self) -> None:
        super().startService()
        self._loop.start()

    def stopService(self) -> Deferred[None]:
        """Finish the checks under way; other processes start those that are due."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._loop.stop()
        if self._under_way.total():
            self._finished = Deferred()
            await self._finished

    async def _look(self) -> None:
        free = AT_ONCE - self._under_way.total()
        if free <= 0 or held(self._clock):
            return
        found = list(await self._checks.due(free, SHARE, dict(self._under_way)))
        self._more = bool(found)
        self._under_way.update(domain.account_id for domain in found)
        for domain in found:
            Deferred.fromCoroutine(self._one(domain)).addBoth(self._ended, domain.account_id)
        if found:
            self._loop.wake()

    async def _one(self, domain: Domain) -> None:
        try:
            await Deferred.fromCoroutine(self._care.look_after(domain)).addTimeout(PATIENCE, self._clock)
        except TimeoutError:
            self.log.info("the check of {domain} took longer than {seconds:g} s and was given up", domain=domain.name, seconds=PATIENCE)
        except Exception:
            self.log.failure("the check of {domain} failed", domain=domain.name)

    def _ended(self, _: object, account_id: UUID) -> None:
        """Start the next check in its place."""
        self._under_way[account_id] -= 1
        self._under_way += Counter()  # drops accounts without checks
        if self._more:
            self._loop.wake()
        if self._finished is not None and not self._under_way.total():
            self._finished.callback(None)
