"""`Delivery`, the service that starts and stops everything in this package, and connects its parts."""

from __future__ import annotations

import random as random_
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.delivery.admission.budget import Budgets
from mailsvc.delivery.admission.decision import Admission
from mailsvc.delivery.admission.health import Healths
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.admission.memory import MemoryBudget, RecentMessages
from mailsvc.delivery.admission.slots import Slots
from mailsvc.delivery.attempt import Attempts
from mailsvc.delivery.chores import Chores
from mailsvc.delivery.claiming import Backlog, Claiming
from mailsvc.delivery.connection.chunking import Chunking
from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.mta_sts import Policies
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.handoff import LocalHandoff
from mailsvc.delivery.lane_context import LaneContext
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import MessageLoader, Messages, Sending
from mailsvc.delivery.pace import Wakeup
from mailsvc.delivery.placing import Placing
from mailsvc.delivery.polling import QueuePolling
from mailsvc.delivery.reactions import Reactions
from mailsvc.delivery.retry import Random
from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.delivery.tasks import Tasks, finished
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.settle import Settling

_SETTLE_SECONDS = 10.0  # at shutdown, to settle the attempts that were cut


class Delivery(Service):
    """Start it once the process is registered. `stopService` drains; it fires when nothing is in progress.

    `handoff` is for intake. `lanes`, `slots`, `memory` and `expired` are for metrics, `view` is for the operator.
    """

    log = Logger()

    def __init__(
        self,
        clock: Any,
        limits: DeliveryLimits,
        region: str,
        process: ProcessRegistration,
        queue: Queue,
        routes: Routes,
        connector: Connector,
        messages: Messages,
        settling: Settling,
        sending: Sending,
        new_id: Callable[[], UUID],
        random: Random = random_.random,
        shaping: Shaping = NO_RULES,
        policies: Policies | None = None,
        tls_counts: TlsCounts | None = None,
    ) -> None:
        self._clock, self._limits = clock, limits
        peers = partial(process.peers, "delivery")
        admission, tasks, wakeup, backlog = Admission.of(limits), Tasks(), Wakeup(clock), Backlog()
        cached = limits.memory // 4
        memory = MemoryBudget(limits.memory - cached)
        leases = LeaseBook(clock, queue, tasks, wakeup, memory, RecentMessages(cached))
        loader = MessageLoader(clock, messages, sending, memory)
        chunking = Chunking(clock, limits.chunking, shaping)
        attempts = Attempts(clock, limits, process, loader, settling, new_id, random, leases, chunking, policies, tls_counts)
        holds = Holds(clock, queue, region, limits, random, tasks)
        slots = Slots(limits.connections, clock, limits.patience_seconds)
        reactions = Reactions(shaping, holds, attempts, leases, tasks)
        context = LaneContext(clock, limits, admission, connector, attempts, slots, leases, reactions)
        lanes = Lanes(context, Healths(clock, limits, peers), Budgets(clock, shaping, peers, holds.slowdown), holds, tasks)
        placing = Placing(routes, holds, attempts, lanes, leases, limits.recipients_per_message)
        claiming = Claiming(clock, admission, region, process, queue, holds, placing, lanes, leases, backlog, tasks, wakeup)
        chores = Chores(clock, limits, region, process, queue, holds, lanes, leases, wakeup)
        self._polling = QueuePolling(clock, limits, region, process, queue, holds, lanes, claiming, chores, wakeup)
        self.handoff = LocalHandoff(limits, admission, region, process, routes, holds, backlog, lanes, leases)
        self._tasks, self._wakeup, self._leases, self._chores = tasks, wakeup, leases, chores
        self.memory, self.attempts, self.holds, self.slots, self.lanes = memory, attempts, holds, slots, lanes

    def startService(self) -> None:
        super().startService()
        self.lanes.accepting = True
        self._tasks.spawn(self._polling.run())

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._drain())

    async def _drain(self) -> None:
        self.lanes.accepting = False
        self._wakeup.wake()
        self._tasks.spawn(self._leases.give_back(self.lanes.close()))
        if not await self.lanes.ended(self._limits.drain_seconds):
            self.log.warn("cutting {count} attempts that wait for a reply", count=self.lanes.busy)
        self.attempts.stopping = True
        self.slots.close()
        self.lanes.abort()
        await self.lanes.ended(_SETTLE_SECONDS)
        await finished(self._clock, self._tasks.running, _SETTLE_SECONDS)

    def wake(self) -> None:
        """Look at the queue now: something was put there."""
        self._wakeup.wake()

    def replaced(self, old: int, new: int) -> None:
        """Other processes took this one for dead and took over its leases: send nothing of that any more."""
        for transaction in self.lanes.close():
            self._leases.remove(transaction)

    @property
    def expired(self) -> int:
        """Recipients that this process found expired in the queue."""
        return self._chores.expired

    def view(self) -> dict[str, dict[str, object]]:
        """The lanes as they are now."""
        return self.lanes.view()
