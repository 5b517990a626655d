"""When domains are checked: those that are due at each ring of the bell and at least every half minute, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mailsvc.store.domain_values import Domain
from mailsvc.store.errors import StoreError

CHANNEL = "domains"  # of the bell
POLL = 30.0
AT_ONCE = 10


class Checks(Protocol):
    async def due(self, limit: int) -> Sequence[Domain]: ...


class Care(Protocol):
    async def look_after(self, domain: Domain) -> Domain | None: ...


class Bell(Protocol):
    def listen(self, channel: str, callback: Callable[[], None]) -> None: ...


class Rounds(Service):
    """Runs while the service runs; what a process that dies leaves behind is due again after some minutes."""

    name = "domains"
    log = Logger()

    def __init__(self, checks: Checks, care: Care, bell: Bell, clock: Any) -> None:
        self._checks, self._care, self._clock = checks, care, clock
        self._timer: Any = None
        self._round: Deferred[None] | None = None
        self._again = False
        bell.listen(CHANNEL, self.wake)

    def startService(self) -> None:
        super().startService()
        self.wake()

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is None:
            return None
        stopped: Deferred[None] = Deferred()
        self._round.addBoth(lambda _: stopped.callback(None))
        return stopped

    def wake(self) -> None:
        """Look now, or once more after the round that is under way."""
        if not self.running:
            return
        if self._round is not None:
            self._again = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._round = Deferred.fromCoroutine(self._go())
        self._round.addErrback(lambda failure: self.log.failure("a round of checks failed", failure=failure))
        self._round.addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._round = None
        if not self.running:
            return
        if self._again:
            self._again = False
            self.wake()
        else:
            self._timer = self._clock.callLater(POLL, self._due)

    def _due(self) -> None:
        self._timer = None
        self.wake()

    async def _go(self) -> None:
        try:
            while self.running:
                domains = await self._checks.due(AT_ONCE)
                await gatherResults([Deferred.fromCoroutine(self._one(domain)) for domain in domains])
                if len(domains) < AT_ONCE:
                    break
        except StoreError as error:
            self.log.warn("domains could not be checked, next try in {pause:g} s: {reason}", pause=POLL, reason=str(error))

    async def _one(self, domain: Domain) -> None:
        try:
            await self._care.look_after(domain)
        except Exception:
            self.log.failure("the check of {domain} failed", domain=domain.name)
