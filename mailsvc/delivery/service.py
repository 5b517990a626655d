"""`Delivery`, the service that starts and stops everything in this package, and connects its parts."""

from __future__ import annotations

import random as random_
from collections.abc import Callable, Collection
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
from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.destination_names import DestinationNames, Named
from mailsvc.delivery.connection.mta_sts import Policies
from mailsvc.delivery.connection.pools import Pools
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.send_modes import SendModes
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.handoff import LocalHandoff
from mailsvc.delivery.lane_context import LaneContext
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import Consent, MessageLoader, Sending
from mailsvc.delivery.passing.handed_over import HandedOver
from mailsvc.delivery.placing import Placing
from mailsvc.delivery.process_queue import ProcessQueue
from mailsvc.delivery.reactions import Reactions
from mailsvc.delivery.retry import Random
from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.delivery.tasks import Tasks, finished
from mailsvc.runtime.lifecycle import Opened, awaited
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.mail.messages import InPieces
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.holds import EVERYTHING
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.restore_guard import REASON
from mailsvc.store.queue.settle import Settling

_UNTIL_READ = 60.0  # seconds of a hold that is in the database already
_SETTLE_SECONDS = 10.0  # at shutdown, to settle the attempts that were cut


class Delivery(Service):
    """Start it once the process is registered. `stopService` drains; it fires when nothing is in progress.

    `handoff` is for intake, `handed_over` for other processes that accept. `lanes`, `slots`, `memory` and `expired` are for metrics, `view`
    is for the operator.
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
        messages: InPieces,
        settling: Settling,
        sending: Sending,
        new_id: Callable[[], UUID],
        random: Random = random_.random,
        shaping: Shaping = NO_RULES,
        policies: Policies | None = None,
        tls_counts: TlsCounts | None = None,
        pools: Pools | None = None,
        consent: Consent | None = None,
    ) -> None:
        self._clock, self._limits = clock, limits
        peers = partial(process.peers, "delivery")
        admission, tasks, backlog = Admission.of(limits), Tasks(), Backlog()
        self._queue = ProcessQueue(clock, region, process, queue)
        self._loop = PollingLoop(clock, "reading the queue", self._poll, limits.poll_seconds, rest=lambda took: self._claiming.rest(took))
        cached = limits.memory // 4
        memory = MemoryBudget(limits.memory - cached)
        leases = LeaseBook(clock, queue, tasks, self.wake, memory, RecentMessages(cached))
        loader = MessageLoader(clock, messages, sending, memory, consent)
        modes = SendModes(clock, limits.chunking, shaping)
        signed = routes.signed if limits.dane else None
        attempts = Attempts(clock, limits, process, loader, settling, new_id, random, leases, modes, policies, tls_counts, region, signed)
        holds = Holds(clock, queue, region, limits, random, tasks)
        slots = Slots(limits.connections, clock, limits.patience_seconds)
        reactions = Reactions(shaping, holds, attempts, leases, tasks)
        context = LaneContext(clock, limits, admission, connector, attempts, slots, leases, reactions)
        lanes = Lanes(context, Healths(clock, limits, peers), Budgets(clock, shaping, peers, holds.throttle), holds, tasks)
        pool_of = (lambda mail: pools.of(mail.account_id, mail.domain_id, mail.bulk)) if pools is not None else (lambda mail: "")
        placing = Placing(routes, holds, attempts, lanes, leases, limits.recipients_per_message, pool_of)
        self._names = DestinationNames(routes, shaping, pools.names if pools is not None else lambda: [""])
        self._claiming = Claiming(self._queue, admission, holds, placing, lanes, leases, backlog, tasks, self.wake)
        self.handoff = LocalHandoff(limits, admission, self._queue, routes, holds, backlog, lanes, leases, loader)
        most = limits.recipients_per_message
        self.handed_over = HandedOver(self._queue, self.handoff, leases, holds, tasks, most, pool_of, self.wake)
        self._chores = Chores(limits, self._queue, holds, lanes, leases, self.handed_over, self.wake)
        self._tasks, self._leases = tasks, leases
        self._drained: Deferred[None] | None = None
        self.memory, self.attempts, self.holds, self.slots, self.lanes = memory, attempts, holds, slots, lanes

    def start(self, opened: Opened) -> None:
        """Draining begins before anything is closed: slow clients, whom the listeners wait for first, could take all the time."""
        self.startService()
        opened.add("delivery", awaited(self.stopService))
        opened.at_stop(self.drain)

    def startService(self) -> None:
        super().startService()
        self._drained = None
        self.lanes.accepting = True
        self._loop.start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        self.drain()
        assert self._drained is not None
        return self._drained

    def drain(self) -> None:
        """Finish the attempts in progress, and begin no more. What is accepted from now on is only queued."""
        self._drained = self._drained or Deferred.fromCoroutine(self._drain())

    async def _drain(self) -> None:
        self.lanes.accepting = False
        self._tasks.spawn(self._loop.stop())
        self._tasks.spawn(self._leases.give_back(self.lanes.close()))
        if not await self.lanes.ended(self._limits.drain_seconds):
            self.log.warn("cutting {count} attempts that wait for a reply", count=self.lanes.busy)
        self.attempts.stopping = True
        self.slots.close()
        self.lanes.abort()
        await self.lanes.ended(_SETTLE_SECONDS)
        await finished(self._clock, self._tasks.running, _SETTLE_SECONDS)

    def hold_restored(self) -> None:
        """Stop claiming at once: the restore guard held all mail in the database, which this process reads about once a second."""
        self.holds.pause(EVERYTHING, REASON, _UNTIL_READ)
        self.lanes.close_held()

    def wake(self) -> None:
        """Look at the queue now: something was put there."""
        self._loop.wake()

    async def _poll(self) -> None:
        if self._queue.usable:
            await self._chores.run()
            await self._claiming.look()

    def replaced(self, old: int, new: int) -> None:
        """Other processes took this one for dead and took over its leases: send nothing of that any more."""
        for transaction in self.lanes.close():
            self._leases.remove(transaction)

    @property
    def emails(self) -> int:
        """Recipients in memory that are to be delivered."""
        return len(self._leases.held)

    @property
    def expired(self) -> int:
        """Recipients that this process found expired in the queue."""
        return self._chores.expired

    async def named(self, text: str, known: Collection[str]) -> Named:
        """The destinations that an operator means. `known`: those in the database."""
        return await self._names.find(text, {*known, *self.lanes.view()})

    def view(self) -> dict[str, dict[str, object]]:
        """The lanes as they are now."""
        return self.lanes.view()
