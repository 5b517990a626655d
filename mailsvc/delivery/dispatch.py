"""The service of the way out: what has to be sent comes into lanes here, born leased from the accepting path or claimed from the queue.

It keeps the lanes, knows which destinations have a backlog in the queue (so that new mail does not overtake it), and gives back
at shutdown what was not sent. How a lane works: lane. Where mail goes: route, placing. What an attempt is: attempt.
"""

from __future__ import annotations

import random as random_
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.delivery import pace
from mailsvc.delivery.attempt import Attempts, Fresh, Settling
from mailsvc.delivery.cargo import Cargo, Messages, Sending
from mailsvc.delivery.connect import Unreachable
from mailsvc.delivery.health import Healths
from mailsvc.delivery.holds import Holds, HoldStore
from mailsvc.delivery.lane import Connecting, Lane, Yard
from mailsvc.delivery.parcel import Key, Parcel, from_email
from mailsvc.delivery.placing import Placing, nothing_left
from mailsvc.delivery.retry import Random
from mailsvc.delivery.route import NoMail, Route, Routes
from mailsvc.delivery.slots import Freight, Recent, Slots
from mailsvc.delivery.terms import DeliverySettings
from mailsvc.store.accept import NewEmail
from mailsvc.store.errors import StoreError
from mailsvc.store.queue import Leased, Ready

_FLOOR = 0.05  # seconds between two looks at the queue, however often the bell rings
_LOOK = 1000  # destinations seen in one look
_FEW, _MANY = 10, 200  # rows of a claim: to try a destination that is new here; at most
_SWEEP = 500  # rows of one sweep
_CLAIMS = 4  # at once
_EXPIRY_EVERY, _LOST_EVERY = 10.0, 30.0
_LAST_WORDS = 10.0  # seconds at shutdown for what was cut to be settled


class QueueStore(HoldStore, Protocol):
    """The queue, as delivery uses it."""

    async def ready(self, region: str, now: datetime, skip: Collection[str], limit: int) -> list[Ready]: ...

    async def claim(self, region: str, destination: str, now: datetime, limit: int, lease: int) -> list[Leased]: ...

    async def release(
        self, keys: Sequence[Key], lease: int, *, destination: str | None = None, next_at: datetime | None = None, reason: str | None = None
    ) -> None: ...

    async def leased(self, lease: int) -> list[Key]: ...

    async def release_scheduled(self, now: datetime, limit: int) -> int: ...

    async def expire(self, now: datetime, limit: int) -> int: ...


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
        terms: DeliverySettings,
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
    ) -> None:
        self._clock, self._terms, self._region, self._process, self._queue, self._routes = clock, terms, region, process, queue, routes
        self._recent = Recent(terms.memory // 4)
        self.freight = Freight(terms.memory - terms.memory // 4)
        self.slots = Slots(terms.connections)
        cargo = Cargo(clock, messages, sending, self.freight)
        self.attempts = Attempts(clock, terms, process, cargo, settling, new_id, random, self)
        self._healths = Healths(clock, terms)
        self.holds = Holds(clock, queue, region, terms, random, self._spawn)
        self._yard = Yard(clock, terms, connector, self.attempts, self.slots, self)
        self._placing = Placing(clock, routes, self.holds, self.attempts, self, terms.recipients_per_message)
        self.lanes: dict[str, Lane] = {}
        self._leaving: set[Lane] = set()  # taken out of service, with attempts under way
        self._backlog: set[tuple[str, bool]] = set()  # destinations, and bulk or not, with due mail in the queue
        self._placed: set[str] = set()  # destinations of which a claim is being placed
        self._mine: set[Key] = set()  # every row leased by us that is in memory
        self._lost: set[Key] = set()  # rows leased by us of which nothing was in memory when last looked
        self._tasks: set[Deferred[Any]] = set()
        self._claims = DeferredSemaphore(_CLAIMS)
        self._due: dict[str, float] = {}
        self._closing = True
        self._bell: Deferred[None] | None = None
        self._rung = False

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
        if self._closing or not isinstance(answer, Route) or not self._process.fresh:
            return None
        destination = answer.destination
        if self.holds.held(destination) or (destination, False) in self._backlog or (bulk and (destination, True) in self._backlog):
            return None
        lane = self._lane(answer)
        # Bulk mail leaves half of the window to what is more urgent.
        room = lane.room - (lane.window // 2 if bulk else 0)
        if room < 1 or not self.freight.room(size) or len(self._mine) >= self._terms.emails:
            self._backlog.add((destination, bulk))
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
                self._own(parcel)
                if seat.octets:
                    parcel.octets, seat.octets = seat.octets, 0
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
        self.freight.unload(seat.octets)
        seat.octets = 0
        seat.lane.unreserve()

    # Service

    def startService(self) -> None:
        super().startService()
        self._closing = False
        self._spawn(self._rounds())

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._drain())

    def ring(self) -> None:
        """There may be something new in the queue. For the bell, and for whoever put something there."""
        self._rung = True
        if self._bell is not None:
            bell, self._bell = self._bell, None
            bell.callback(None)

    def replaced(self, old: int, new: int) -> None:
        """Others took this process for dead and took over what it had leased: nothing of that is sent any more."""
        for lane in list(self.lanes.values()):
            self._retire(lane)
            for parcel in lane.close():
                self.disown(parcel)

    async def _drain(self) -> None:
        self._closing = True
        self.ring()
        lanes = [*self.lanes.values(), *self._leaving]
        unsent = [parcel for lane in lanes for parcel in lane.close()]
        self._spawn(self.give_back(unsent))
        if not await nothing_left(self._clock, [lane.ended() for lane in lanes], self._terms.drain_seconds):
            self.log.warn("cutting {count} attempts that wait for a reply", count=sum(lane.busy for lane in lanes))
        self.attempts.stopping = True
        for lane in lanes:
            lane.abort()
        await nothing_left(self._clock, [lane.ended() for lane in lanes], _LAST_WORDS)
        await nothing_left(self._clock, list(self._tasks), _LAST_WORDS)

    # Looking at the queue

    async def _rounds(self) -> None:
        while not self._closing:
            try:
                if self._process.fresh:
                    await self._round()
            except Exception as error:
                self.log.warn("the queue could not be read: {error!r}", error=error)
                await pace.sleep(self._clock, self._terms.poll_seconds)
            await pace.sleep(self._clock, _FLOOR)
            if not self._rung and not self._closing:
                await self._nap()
            self._rung = False

    async def _nap(self) -> None:
        waiting: Deferred[None] = Deferred()
        self._bell = waiting
        timer = self._clock.callLater(self._terms.poll_seconds, self.ring)
        await waiting
        if timer.active():
            timer.cancel()

    async def _round(self) -> None:
        now = pace.now(self._clock)
        poll = self._terms.poll_seconds
        await self._tend("schedule", poll, lambda: self._queue.release_scheduled(now, _SWEEP))
        await self._tend("holds", poll, self._respect_holds)
        await self._tend("expiry", _EXPIRY_EVERY, lambda: self._queue.expire(now, _SWEEP))
        await self._tend("lost leases", _LOST_EVERY, self._find_lost)
        full = {name for name, lane in self.lanes.items() if lane.room < 1} | self._placed
        ready = await self._queue.ready(self._region, now, [*full, *self.holds.names()], _LOOK)
        found = {(each.destination, each.bulk) for each in ready if each.next_at <= now}
        self._backlog = found | {each for each in self._backlog if each[0] in full}
        await gatherResults([self._spawn(self._claim(destination)) for destination in {name: None for name, _ in found}])

    async def _tend(self, what: str, seconds: float, sweep: Callable[[], Awaitable[int]]) -> None:
        """Do a chore every so often; in the next round again when it found as much as it may take at once. None stops another."""
        if self._clock.seconds() < self._due.get(what, 0.0):
            return
        self._due[what] = self._clock.seconds() + seconds
        try:
            count = await sweep()
        except Exception as error:
            self.log.warn("tending to {what} failed: {error!r}", what=what, error=error)
        else:
            if count >= _SWEEP:
                del self._due[what]
                self.ring()

    async def _claim(self, destination: str) -> None:
        """As much of a destination as there is room for."""
        if destination in self._placed or self._closing or self.holds.held(destination) or not self._process.fresh:
            return
        limit = self._limit(destination)
        if limit < 1:
            return
        self._placed.add(destination)
        lease = self.lease
        try:
            async with self._claims:
                rows = await self._queue.claim(self._region, destination, pace.now(self._clock), limit, lease)
        except BaseException:
            self._placed.discard(destination)
            raise
        if len(rows) < limit:
            self._backlog -= {(destination, False), (destination, True)}
        self._spawn(self._place(destination, rows, lease, more=len(rows) >= limit))

    def _limit(self, destination: str) -> int:
        left = self._terms.emails - len(self._mine)
        lane = self.lanes.get(destination)
        if lane is not None:
            return min(lane.room, left, _MANY)
        known = self._placing.known(destination)
        to_sort = isinstance(known, NoMail) or (isinstance(known, Route) and known.destination != destination)
        return min(_MANY if to_sort else _FEW, left)

    async def _place(self, destination: str, rows: Sequence[Leased], lease: int, *, more: bool) -> None:
        try:
            await self._placing.place(destination, rows, lease, self._own_claimed)
        finally:
            self._placed.discard(destination)
            if more:
                self.ring()

    async def _find_lost(self) -> int:
        """Rows with our lease that we know nothing of, twice in a row: a commit whose answer never came."""
        held = set(await self._queue.leased(self.lease))
        unknown = held - self._mine
        lost, self._lost = unknown & self._lost, unknown
        if lost:
            self.log.warn("{count} leases were lost track of and go back to the queue", count=len(lost))
            await self._queue.release(sorted(lost), self.lease)
        return 0

    # Parcels

    def accept(self, route: Route, parcel: Parcel) -> bool:
        if self._closing or self.holds.held(route.destination):
            return False
        lane = self._lane(route)
        if lane.room < 1 and lane.waiting >= 2 * lane.window:
            return False
        lane.put(parcel)
        return True

    async def give_back(
        self, parcels: Sequence[Parcel], destination: str | None = None, next_at: datetime | None = None, reason: str | None = None
    ) -> None:
        """Leases back to the queue, until that is written down."""
        leases: dict[int, list[Parcel]] = {}
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

    def _own(self, parcel: Parcel) -> None:
        self._mine.update(parcel.keys)

    def _own_claimed(self, parcel: Parcel) -> None:
        """What was accepted here a moment ago is still in memory."""
        self._own(parcel)
        kept = self._recent.pop(parcel.email_id)
        if kept is not None and self.freight.room(len(kept[0])):
            parcel.body, parcel.envelope = kept
            parcel.octets = len(kept[0])
            self.freight.load(parcel.octets)

    def disown(self, parcel: Parcel) -> None:
        self._mine.difference_update(parcel.keys)
        self.freight.unload(parcel.octets)
        parcel.octets, parcel.body = 0, None

    # Lanes: what lane.Owner says

    def drained(self, lane: Lane) -> None:
        name = lane.destination
        if ((name, False) in self._backlog or (name, True) in self._backlog) and name not in self._placed:
            self._spawn(self._claim(name))

    def over(self, lane: Lane) -> None:
        self._leaving.discard(lane)
        if self.lanes.get(lane.destination) is lane:
            del self.lanes[lane.destination]

    def succeeded(self, lane: Lane) -> None:
        self.holds.lift(lane.destination)

    def down(self, lane: Lane, why: Unreachable, parcels: list[Parcel]) -> None:
        """The destination rests; the first email tells what happened, the others wait for it untouched."""
        self._retire(lane)
        if self._closing:
            self._spawn(self.give_back(parcels))
            return
        if not why.permanent:
            self.holds.fail(lane.destination, why.reason)
        told = parcels if why.permanent else parcels[:1]
        for parcel in told:
            self._spawn(self.attempts.unreachable(parcel, why))
        self._spawn(self.give_back(parcels[len(told) :]))

    def returned(self, parcel: Parcel, pause: float = 0.0) -> None:
        next_at = pace.now(self._clock) + timedelta(seconds=pause) if pause else None
        self._spawn(self.give_back([parcel], next_at=next_at))

    def _lane(self, route: Route) -> Lane:
        lane = self.lanes.get(route.destination)
        if lane is None:
            health = self._healths.of(route.destination)
            if self.holds.failures(route.destination):
                health.probe()
            lane = self.lanes[route.destination] = Lane(route, self._yard, health)
        return lane

    def _retire(self, lane: Lane) -> None:
        """No more mail for this lane; it stays known until its last attempt is over."""
        if self.lanes.get(lane.destination) is lane:
            del self.lanes[lane.destination]
        if lane.busy or lane.reserved:
            self._leaving.add(lane)

    async def _respect_holds(self) -> int:
        """What others found out, or the operator ordered, counts for lanes that are open."""
        await self.holds.refresh()
        for lane in [lane for name, lane in self.lanes.items() if self.holds.held(name)]:
            self._retire(lane)
            self._spawn(self.give_back(lane.close()))
        return 0

    def _spawn(self, work: Awaitable[None]) -> Deferred[None]:
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
