"""Runs the event ledger: after each notification and once a second, one batch after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from mailsvc.clock import held, utc
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.events.ledger import EventLedger, Lag
from mailsvc.store.postgres.notifications import Notifier

POLL = 1.0
BATCH = 2000  # events in one transaction
SWEEP_EVERY = 60.0
SWEEP_BATCH = 1000  # expired idempotency records in one transaction


class Ledger(Service):
    """The service. `numbered` is called after each commit with the number of events."""

    name = "ledger"

    def __init__(
        self, store: EventLedger, notifications: Notifier, clock: Any, *, numbered: Callable[[int], object] = lambda count: None
    ) -> None:
        self._store = store
        self._clock = clock
        self._numbered = numbered
        self._swept_at = float("-inf")
        self._loop = PollingLoop(clock, "numbering events", self._keep, POLL)
        notifications.listen("events", self._loop.wake)

    def startService(self) -> None:
        super().startService()
        self._loop.start()

    def stopService(self) -> Deferred[None]:
        """Finish the current batch; other processes number the rest."""
        super().stopService()
        return Deferred.fromCoroutine(self._loop.stop())

    async def lag(self) -> Lag:
        return await self._store.lag(self._now())

    async def _keep(self) -> None:
        await self._until_less(BATCH, self._number)
        if self._clock.seconds() - self._swept_at >= SWEEP_EVERY and not held(self._clock):
            await self._until_less(SWEEP_BATCH, lambda batch: self._store.sweep(self._now(), batch))
            self._swept_at = self._clock.seconds()

    async def _number(self, limit: int) -> int:
        count = await self._store.number(limit)
        if count:
            self._numbered(count)
        return count

    async def _until_less(self, batch: int, take: Callable[[int], Awaitable[int]]) -> None:
        """Repeat until a batch is not full or the service stops."""
        while await take(batch) >= batch and self.running:
            pass

    def _now(self) -> datetime:
        return utc(self._clock)
