"""The service of the way out: what has to be sent comes into lanes here, born leased from the accepting path or claimed from the queue.

It keeps the lanes, knows which destinations have a backlog in the queue (so that new mail does not overtake it), and gives back
at shutdown what was not sent. How a lane works: lane. Where mail goes: route, placing. What an attempt is: attempt.
"""

from __future__ import annotations

import random as random_
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.delivery import pace
from mailsvc.delivery.admission.budget import Budgets
from mailsvc.delivery.admission.health import Healths
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.admission.slots import MemoryBudget, Recent, Slots
from mailsvc.delivery.attempt import Attempts, Fresh, PolicySource, Settling
from mailsvc.delivery.connection.chunking import Chunking
from mailsvc.delivery.connection.connect import Unreachable
from mailsvc.delivery.connection.route import Route, Routes
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.lane import Lane
from mailsvc.delivery.lane_context import Connecting, LaneContext
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import MessageLoader, Messages, Sending
from mailsvc.delivery.placing import Placing, nothing_left
from mailsvc.delivery.polling import QueuePolling, QueueStore
from mailsvc.delivery.retry import Random
from mailsvc.delivery.shaping import NO_RULES, Shaping, provider_of
from mailsvc.delivery.transaction import Key, Transaction, from_email
from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.mail.reply import Reply
from mailsvc.store.mail.accept import NewEmail
from mailsvc.store.postgres.errors import StoreError

_ALONG = 1 << 20  # octets of messages that come with a claim
_LAST_WORDS = 10.0  # seconds at shutdown for what was cut to be settled


@attrs.define(eq=False)
class Seat:
    """A reserved place in a lane. A recipient born leased is filed under `destination`, its row holds `lease`."""

    lane: Lane
    lease: int
    octets: int

    @property
    def destination(self) -> str:
        return self.lane.destination


class Dispatch(Service):
    """Start it after the process has its number; `stopService` drains and fires when nothing is under way."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        terms: DeliveryLimits,
        region: str,
        process: Fresh,
        queue: QueueStore,
        routes: Routes,
        connector: Connecting,
        messages: Messages,
        settling: Settling,
        sending: Sending,
        new_id: Callable[[], UUID],
        random: Random = random_.random,
        shaping: Shaping = NO_RULES,
        policies: PolicySource | None = None,
        tally: TlsCounts | None = None,
    ) -> None:
        self._clock, self._terms, self._region, self._process, self._queue, self._routes = clock, terms, region, process, queue, routes
        self._recent = Recent(terms.memory // 4)
        self._here = False  # what is claimed was accepted here a moment ago: claims need bring no messages
        self.freight = MemoryBudget(terms.memory - terms.memory // 4)
        self.slots = Slots(terms.connections, clock, terms.patience_seconds)
        cargo = MessageLoader(clock, messages, sending, self.freight)
        chunking = Chunking(clock, terms.chunking, shaping)
        self.attempts = Attempts(clock, terms, process, cargo, settling, new_id, random, self, chunking, policies, tally)
        self.holds = Holds(clock, queue, region, terms, random, self.spawn)
        peers = partial(process.peers, "delivery")
        self._healths = Healths(clock, terms, peers)
        self._shaping, self._budgets = shaping, Budgets(clock, shaping, peers, self.holds.slowdown)
        self._yard = LaneContext(clock, terms, connector, self.attempts, self.slots, self)
        self._placing = Placing(clock, routes, self.holds, self.attempts, self, terms.recipients_per_message)
        self.lanes: dict[str, Lane] = {}
        self._leaving: set[Lane] = set()  # taken out of service, with attempts under way
        self._rounds = QueuePolling(clock, terms, region, process, queue, self.holds, self._placing, self)
        self._paused: Mapping[UUID, datetime] = {}  # accounts whose mail waits by the operator's word
        self.mine: set[Key] = set()  # every row leased by us that is in memory
        self._tasks: set[Deferred[Any]] = set()
        self.closing = True

    # The accepting path: what intake.Handover says

    @property
    def lease(self) -> int:
        """The number that recipients born leased are stored with."""
        return self._process.id

    def destination(self, domain: str) -> str:
        """Under which destination a recipient that got no seat is filed: the bare domain until its route is known."""
        answer = self._routes.cached(domain)
        return answer.destination if isinstance(answer, Route) else domain.lower()

    def offer(self, domain: str, size: int, bulk: bool) -> Seat | None:
        """A place for one email to `domain`, when it can go out at once and overtakes nothing. Never waits."""
        answer = self._routes.cached(domain)
        if self.closing or not isinstance(answer, Route) or not self._process.fresh:
            return None
        destination = answer.destination
        if self.holds.held(destination) or self._rounds.waits(destination, bulk):
            return None
        lane = self._lane(answer)
        # Bulk mail leaves half of the window to what is more urgent.
        room = lane.room - (lane.window // 2 if bulk else 0)
        if room < 1 or not self.freight.room(size) or len(self.mine) >= self._terms.emails:
            self._rounds.overflow(destination, bulk)
            lane.settle_down()
            return None
        lane.reserve()
        self.freight.load(size)
        return Seat(lane, self.lease, size)

    def take(self, email: NewEmail, seats: Iterable[Seat]) -> None:
        """The email is committed: its recipients born leased go to their lanes."""
        lanes: dict[str, Seat] = {}
        if email.scheduled_at is None and email.region == self._region and not all(recipient.leased for recipient in email.recipients):
            self._recent.keep(email.email_id, email.message, email.envelope)
        for seat in seats:
            if seat.destination in lanes:
                self._leave(seat)
            else:
                lanes[seat.destination] = seat
        for destination, seat in lanes.items():
            for parcel in from_email(email, destination, seat.lease, self._terms.recipients_per_message, email.message):
                self.own(parcel)
                if seat.octets:
                    parcel.octets, seat.octets = seat.octets, 0
                if self.paused(parcel):
                    continue
                if seat.lane.closing:
                    self.returned(parcel)
                else:
                    seat.lane.put(parcel)
            self._leave(seat)

    def free(self, seats: Iterable[Seat]) -> None:
        """The email was not committed."""
        for seat in seats:
            self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        if seat.octets:
            self.freight.unload(seat.octets)
            seat.octets = 0
        seat.lane.unreserve()

    # Service

    def startService(self) -> None:
        super().startService()
        self.closing = False
        self.spawn(self._rounds.run())

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._drain())

    def ring(self) -> None:
        """There may be something new in the queue. For the bell, and for whoever put something there."""
        self._rounds.ring()

    def replaced(self, old: int, new: int) -> None:
        """Others took this process for dead and took over what it had leased: nothing of that is sent any more."""
        for lane in list(self.lanes.values()):
            self._retire(lane)
            for parcel in lane.close():
                self.disown(parcel)

    async def _drain(self) -> None:
        self.closing = True
        self.ring()
        lanes = [*self.lanes.values(), *self._leaving]
        unsent = [parcel for lane in lanes for parcel in lane.close()]
        self.spawn(self.give_back(unsent))
        if not await nothing_left(self._clock, [lane.ended() for lane in lanes], self._terms.drain_seconds):
            self.log.warn("cutting {count} attempts that wait for a reply", count=sum(lane.busy for lane in lanes))
        self.attempts.stopping = True
        self.slots.close()
        for lane in lanes:
            lane.abort()
        await nothing_left(self._clock, [lane.ended() for lane in lanes], _LAST_WORDS)
        await nothing_left(self._clock, list(self._tasks), _LAST_WORDS)

    # What is shown

    @property
    def expired(self) -> int:
        """Recipients whose time this process saw end in the queue."""
        return self._rounds.expired

    def view(self) -> dict[str, dict[str, object]]:
        """The lanes, as they are now."""
        return {name: lane.view() for name, lane in self.lanes.items()}

    # Parcels

    def paused(self, parcel: Transaction) -> bool:
        """Whether its account is paused; then it goes back until that is over."""
        until = self._paused.get(parcel.account_id)
        if until is None or until <= pace.now(self._clock):
            return False
        self.spawn(self._give_back_paused(parcel))
        return True

    async def _give_back_paused(self, parcel: Transaction) -> None:
        async def release() -> None:
            await self._queue.release_paused(parcel.keys, parcel.lease, parcel.account_id, pace.now(self._clock))

        await pace.insist(self._clock, "giving leases back", release)
        self.disown(parcel)

    def accept(self, route: Route, parcel: Transaction) -> bool:
        if self.closing or self.holds.held(route.destination):
            return False
        lane = self._lane(route)
        if lane.room < 1 and lane.waiting >= 2 * lane.window:
            return False
        lane.put(parcel)
        return True

    async def give_back(
        self, parcels: Sequence[Transaction], destination: str | None = None, next_at: datetime | None = None, reason: str | None = None
    ) -> None:
        """Leases back to the queue, until that is written down."""
        leases: dict[int, list[Transaction]] = {}
        for parcel in parcels:
            leases.setdefault(parcel.lease, []).append(parcel)
        for lease, found in leases.items():
            keys = [key for parcel in found for key in parcel.keys]

            async def release(keys: list[Key] = keys, lease: int = lease) -> None:
                await self._queue.release(keys, lease, destination=destination, next_at=next_at, reason=reason)

            await pace.insist(self._clock, "giving leases back", release)
            for parcel in found:
                self._recent.keep(parcel.email_id, parcel.body, parcel.envelope)
                self.disown(parcel)
        if parcels and destination is not None:
            self.ring()

    def own(self, parcel: Transaction) -> None:
        self.mine.update(parcel.keys)

    @property
    def along(self) -> int:
        """How many octets of messages the next claim may bring."""
        return 0 if self._here else min(_ALONG, self.freight.left)

    def brought(self, messages: Mapping[UUID, tuple[bytes, StoredEnvelope]]) -> None:
        self._here = self._here or any(email_id in self._recent for email_id in messages)
        for email_id, (body, envelope) in messages.items():
            self._recent.keep(email_id, body, envelope)

    def own_claimed(self, parcel: Transaction) -> None:
        """What was accepted here a moment ago is still in memory, and what the claim brought."""
        self.own(parcel)
        kept = self._recent.pop(parcel.email_id)
        self._here = self._here and kept is not None
        if kept is not None and self.freight.room(len(kept[0])):
            parcel.body, parcel.envelope = kept
            parcel.octets = len(kept[0])
            self.freight.load(parcel.octets)

    def disown(self, parcel: Transaction) -> None:
        self.mine.difference_update(parcel.keys)
        self.freight.unload(parcel.octets)
        parcel.octets, parcel.body = 0, None

    # Lanes: what lane.Owner says

    def drained(self, lane: Lane) -> None:
        self._rounds.fetch(lane.destination)

    def over(self, lane: Lane) -> None:
        self._leaving.discard(lane)
        if self.lanes.get(lane.destination) is lane:
            del self.lanes[lane.destination]

    def succeeded(self, lane: Lane) -> None:
        self.holds.lift(lane.destination)

    def down(self, lane: Lane, why: Unreachable, parcels: list[Transaction]) -> None:
        """The destination rests; the first email tells what happened, the others wait for it untouched."""
        self._retire(lane)
        if self.closing:
            self.spawn(self.give_back(parcels))
            return
        if not why.permanent:
            self.holds.fail(lane.destination, why.reason)
        told = parcels if why.permanent else parcels[:1]
        for parcel in told:
            self.spawn(self.attempts.unreachable(parcel, why))
        self.spawn(self.give_back(parcels[len(told) :]))

    def answered(self, lane: Lane, replies: tuple[Reply, ...]) -> None:
        """Slow down, or hold the provider altogether, when there is a rule for one of these."""
        found = self._shaping.reaction(lane.destination, replies)
        if found is None:
            return
        rule, _ = found
        name = provider_of(lane.destination)
        if rule.then == "slow":
            rate = rule.messages_per_minute
            self.holds.slow(name, rate, f"{name} gets {rate:g} emails a minute because {rule.because} (rule {rule.name}).", rule.seconds)
            return
        self.holds.pause(name, f"{name} is left alone because {rule.because} (rule {rule.name}).", rule.seconds)
        self.retire_held()

    def returned(self, parcel: Transaction, pause: float = 0.0) -> None:
        next_at = pace.now(self._clock) + timedelta(seconds=pause) if pause else None
        self.spawn(self.give_back([parcel], next_at=next_at))

    def _lane(self, route: Route) -> Lane:
        lane = self.lanes.get(route.destination)
        if lane is None:
            health = self._healths.of(route.destination)
            if self.holds.failures(route.destination):
                health.probe()
            lane = self.lanes[route.destination] = Lane(route, self._yard, health, self._budgets.of(route.destination))
        return lane

    def _retire(self, lane: Lane) -> None:
        """No more mail for this lane; it stays known until its last attempt is over."""
        if self.lanes.get(lane.destination) is lane:
            del self.lanes[lane.destination]
        if lane.busy or lane.reserved:
            self._leaving.add(lane)

    async def respect_holds(self) -> int:
        """What others found out, or the operator ordered, counts for lanes that are open."""
        await self.holds.refresh()
        self._paused = dict(await self._queue.paused_accounts(pace.now(self._clock)))
        self.retire_held()
        return 0

    def retire_held(self) -> None:
        """Nothing more is begun where everything is held; what waited in memory waits in the queue."""
        for lane in [lane for name, lane in self.lanes.items() if self.holds.held(name)]:
            self._retire(lane)
            self.spawn(self.give_back(lane.close()))

    def spawn(self, work: Awaitable[None]) -> Deferred[None]:
        """Run by itself; what it raises is logged. Shutdown waits for it."""
        task: Deferred[None] = Deferred.fromCoroutine(work)  # type: ignore[arg-type]
        self._tasks.add(task)

        def ended(result: Any) -> None:
            self._tasks.discard(task)

        task.addErrback(self._failed)
        return task.addBoth(ended)

    def _failed(self, failure: Failure) -> None:
        if failure.check(StoreError):  # the database is away, or will be asked again
            self.log.warn("a task of delivery has to wait: {error!r}", error=failure.value)
        else:
            self.log.failure("a task of delivery failed", failure=failure)
