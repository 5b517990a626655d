"""The polling loop: chores, a look at the queue, claims; again when something wakes it, or after `delivery.poll_seconds`."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

from mailsvc.clock import held
from mailsvc.delivery import pace
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.chores import Chores
from mailsvc.delivery.claiming import Claiming
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.pace import Wakeup
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import ProcessRegistration

_PAUSE = 0.05  # seconds between two looks at the queue, however often the loop is woken
_SHORT_PAUSE = 0.01  # the same after a look that found little: waiting longer would not collect more rows
_LITTLE = 3  # rows
_LOOK = 1000  # destinations seen in one look


class QueuePolling:
    """One for a process."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        limits: DeliveryLimits,
        region: str,
        process: ProcessRegistration,
        queue: Queue,
        holds: Holds,
        lanes: Lanes,
        claiming: Claiming,
        chores: Chores,
        wakeup: Wakeup,
    ) -> None:
        self._clock, self._limits, self._region, self._process, self._queue = clock, limits, region, process, queue
        self._holds, self._lanes, self._claiming, self._chores, self._wakeup = holds, lanes, claiming, chores, wakeup

    async def run(self) -> None:
        """Until shutdown."""
        while self._lanes.accepting:
            try:
                if self._process.fresh and not held(self._clock):
                    await self._chores.run()
                    await self._look()
            except Exception as error:
                self.log.warn("the queue could not be read: {error!r}", error=error)
                await pace.sleep(self._clock, self._limits.poll_seconds)
            await pace.sleep(self._clock, _SHORT_PAUSE if self._claiming.rows <= _LITTLE else _PAUSE)
            self._claiming.rows = 0
            await self._wakeup.sleep(self._limits.poll_seconds)

    async def _look(self) -> None:
        skipped = self._claiming.skipped
        ready = await self._queue.ready(self._region, pace.now(self._clock), [*skipped, *self._holds.names()], _LOOK)
        await self._claiming.claim(ready, skipped)
