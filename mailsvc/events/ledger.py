"""When the books are kept: a round after each notification and once a second, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import held, utc
from mailsvc.store.events.ledger import Lag
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.notifications import Notifier

POLL = 1.0
BATCH = 2000  # events in one transaction
SWEEP_EVERY = 60.0
SWEEP_BITE = 1000  # expired answers in one transaction


class Books(Protocol):
    """store/events/ledger has the real ones."""

    async def number(self, limit: int) -> int: ...
    async def lag(self, now: datetime) -> Lag: ...
    async def sweep(self, now: datetime, limit: int) -> int: ...


class Ledger(Service):
    """Runs while the service runs. `numbered` is called with the size of each batch, after its commit."""

    name = "ledger"
    log = Logger()

    def __init__(
        self, books: Books, notifications: Notifier, clock: Any, *, numbered: Callable[[int], object] = lambda count: None
    ) -> None:
        self._books = books
        self._clock = clock
        self._numbered = numbered
        self._timer: Any = None
        self._round: Deferred[None] | None = None
        self._again = False
        self._swept_at = float("-inf")
        notifications.listen("events", self.wake)

    def startService(self) -> None:
        super().startService()
        self.wake()

    def stopService(self) -> Deferred[None] | None:
        """The batch under way ends; what is left is for the next ledger."""
        super().stopService()
        self._again = False
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
        self._round = Deferred.fromCoroutine(self._keep())
        self._round.addErrback(lambda failure: self.log.failure("the ledger failed", failure=failure))
        self._round.addBoth(self._ended)

    async def lag(self) -> Lag:
        return await self._books.lag(self._now())

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

    async def _keep(self) -> None:
        try:
            await self._until_less(BATCH, self._number)
            if self._clock.seconds() - self._swept_at >= SWEEP_EVERY and not held(self._clock):
                await self._until_less(SWEEP_BITE, lambda bite: self._books.sweep(self._now(), bite))
                self._swept_at = self._clock.seconds()
        except StoreError as error:
            self.log.warn("the ledger could not keep the books, next try in {pause:g} s: {reason}", pause=POLL, reason=str(error))

    async def _number(self, limit: int) -> int:
        count = await self._books.number(limit)
        if count:
            self._numbered(count)
        return count

    async def _until_less(self, bite: int, take: Callable[[int], Awaitable[int]]) -> None:
        """Bite after bite, until one is not full or the service stops."""
        while await take(bite) >= bite and self.running:
            pass

    def _now(self) -> datetime:
        return utc(self._clock)
