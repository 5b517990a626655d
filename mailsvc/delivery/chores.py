"""What has to be done in the queue now and then: scheduled mail, holds of other processes, expiry, forgotten leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.logger import Logger

from mailsvc.delivery.admission.holds import FORGOTTEN, Holds
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LOST, LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.passing.handed_over import HandedOver
from mailsvc.delivery.process_queue import ProcessQueue
from mailsvc.delivery.transaction import Key
from mailsvc.store.queue.holds import EVERYTHING

_AT_ONCE = 500  # rows
_EXPIRY_EVERY, _LOST_EVERY, _FILES_EVERY, _FORGET_EVERY = 10.0, 20.0, 30.0, 3600.0  # seconds


class Chores:
    """`expired` counts recipients that expired in the queue."""

    log = Logger()

    def __init__(
        self,
        limits: DeliveryLimits,
        queue: ProcessQueue,
        holds: Holds,
        lanes: Lanes,
        leases: LeaseBook,
        handed_over: HandedOver,
        wake: Callable[[], None],
    ) -> None:
        self._limits, self._queue, self._holds = limits, queue, holds
        self._lanes, self._leases, self._handed_over, self._wake = lanes, leases, handed_over, wake
        self._due: dict[str, float] = {}
        self._unknown: dict[tuple[Key, str], float] = {}  # leased rows that are not in memory, with their places, and since when
        self.expired = 0

    async def run(self) -> None:
        """Those that are due."""
        poll = self._limits.poll_seconds
        await self._do("releasing scheduled mail", poll, lambda: self._queue.release_scheduled(_AT_ONCE))
        await self._do("reading holds", poll, self._read_holds)
        await self._do("deleting old holds", _FORGET_EVERY, self._forget_holds)
        await self._do("expiring mail", _EXPIRY_EVERY, self._expire)
        self._handed_over.forget()
        await self._do("looking for lost leases", _LOST_EVERY, self._find_lost)
        await self._do("forgetting files of messages", _FILES_EVERY, self._leases.forget_files)

    async def _do(self, what: str, seconds: float, sweep: Callable[[], Awaitable[int]]) -> None:
        """Do a chore every `seconds`, or in the next round if it reached its limit. A failure does not stop the others."""
        if self._queue.clock.seconds() < self._due.get(what, 0.0):
            return
        self._due[what] = self._queue.clock.seconds() + seconds
        try:
            count = await sweep()
        except Exception as error:
            self.log.warn("{what} failed: {error!r}", what=what, error=error)
        else:
            if count >= _AT_ONCE:
                del self._due[what]
                self._wake()

    async def _read_holds(self) -> int:
        """Holds that other processes or the operator made also close lanes here."""
        await self._holds.refresh()
        self._lanes.close_held()
        return 0

    async def _forget_holds(self) -> int:
        return await self._queue.forget_holds(FORGOTTEN)

    async def _expire(self) -> int:
        """Not while everything is held: that says nothing about whether the mail could be delivered."""
        if self._holds.held(EVERYTHING):
            return 0
        count = await self._queue.expire(_AT_ONCE)
        self.expired += count
        return count

    async def _find_lost(self) -> int:
        """Give back rows leased by us that have not been in memory for too long: the response to a commit was lost."""
        lease = self._queue.lease
        rows, now = await self._queue.leased(lease), self._queue.clock.seconds()
        in_memory = self._leases.keys(lease) | self._handed_over.keys
        self._unknown = {each: self._unknown.get(each, now) for each in rows.items() if each[0] not in in_memory}
        lost = [each for each, since in self._unknown.items() if now - since >= LOST]
        if lost:
            self.log.warn("{count} leases were lost track of and are given back to the queue", count=len(lost))
            await self._queue.release([key for key, _ in lost], lease)
            for each in lost:
                del self._unknown[each]
        return 0
