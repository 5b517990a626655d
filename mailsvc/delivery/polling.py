"""Looking at the queue: which destinations have mail that is due, how much of it is claimed, and the chores in between.

Where a claim goes from here: placing. The lanes that it comes to: dispatch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.logger import Logger

from mailsvc.clock import held
from mailsvc.delivery import pace
from mailsvc.delivery.admission.holds import FORGOTTEN, Holds, HoldStore
from mailsvc.delivery.attempt import Fresh
from mailsvc.delivery.connection.route import NoMail, Route
from mailsvc.delivery.lane import Lane
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.placing import Placing
from mailsvc.delivery.transaction import Key, Transaction
from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.store.queue.claims import Claimed, Leased, Ready
from mailsvc.store.queue.holds import EVERYTHING

_FLOOR = 0.05  # seconds between two looks at the queue, however often the bell rings
_BRIEF = 0.01  # the same after a look that found little: then waiting for company saves nothing
_LITTLE = 3  # rows
_LOOK = 1000  # destinations seen in one look
_FEW, _MANY = 10, 200  # rows of a claim: to try a destination that is new here; at most, of one destination
_HANDFUL, _ROWS = 40, 400  # destinations of a claim, and rows where it has several
_SWEEP = 500  # rows of one sweep
_CLAIMS = 4  # at once
_EXPIRY_EVERY, _LOST_EVERY, _FORGET_EVERY = 10.0, 30.0, 3600.0


class QueueStore(HoldStore, Protocol):
    """The queue, as delivery uses it."""

    async def ready(self, region: str, now: datetime, skip: Collection[str], limit: int) -> list[Ready]: ...

    async def claim(self, region: str, wanted: Mapping[str, int], now: datetime, lease: int, octets: int) -> Claimed: ...

    async def release(
        self, keys: Sequence[Key], lease: int, *, destination: str | None = None, next_at: datetime | None = None, reason: str | None = None
    ) -> None: ...

    async def release_paused(self, keys: Sequence[Key], lease: int, account_id: UUID, now: datetime) -> None: ...

    async def leased(self, lease: int) -> list[Key]: ...

    async def paused_accounts(self, now: datetime) -> Mapping[UUID, datetime]: ...

    async def forget_holds(self, region: str, before: datetime) -> int: ...

    async def release_scheduled(self, now: datetime, limit: int) -> int: ...

    async def expire(self, now: datetime, limit: int) -> int: ...


class Hall(Protocol):
    """Where the lanes are: dispatch."""

    mine: set[Key]

    @property
    def closing(self) -> bool: ...

    @property
    def lanes(self) -> Mapping[str, Lane]: ...

    @property
    def along(self) -> int:
        """How many octets of messages a claim may bring."""

    def brought(self, messages: Mapping[UUID, tuple[bytes, StoredEnvelope]]) -> None:
        """They came with a claim, whose parcels follow."""

    def own_claimed(self, parcel: Transaction) -> None:
        """It is in memory now."""

    def spawn(self, work: Awaitable[None]) -> Deferred[None]: ...

    async def respect_holds(self) -> int: ...


class QueuePolling:
    """One for a process. It remembers which destinations have a backlog, so that new mail does not overtake it."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        terms: DeliveryLimits,
        region: str,
        process: Fresh,
        queue: QueueStore,
        holds: Holds,
        placing: Placing,
        hall: Hall,
    ) -> None:
        self._clock, self._terms, self._region, self._process, self._queue = clock, terms, region, process, queue
        self._holds, self._placing, self._hall = holds, placing, hall
        self._backlog: set[tuple[str, bool]] = set()  # destinations, and bulk or not, with due mail in the queue
        self._placed: set[str] = set()  # destinations of which a claim is being placed
        self._lost: set[Key] = set()  # rows leased by us of which nothing was in memory when last looked
        self._claims = DeferredSemaphore(_CLAIMS)
        self._due: dict[str, float] = {}
        self.expired = 0  # recipients whose time ended in the queue
        self._bell: Deferred[None] | None = None
        self._rung = False
        self._claimed = 0  # rows, since the last look

    def ring(self) -> None:
        """There may be something new in the queue."""
        self._rung = True
        if self._bell is not None:
            bell, self._bell = self._bell, None
            bell.callback(None)

    def waits(self, destination: str, bulk: bool) -> bool:
        """Whether something in the queue goes before a new email."""
        return (destination, False) in self._backlog or (bulk and (destination, True) in self._backlog)

    def overflow(self, destination: str, bulk: bool) -> None:
        """A new email had to go to the queue."""
        self._backlog.add((destination, bulk))

    def fetch(self, destination: str) -> None:
        """There is room for more of a destination, if there is more."""
        if self.waits(destination, True):
            for handful in self._handfuls([destination]):
                self._hall.spawn(self._claim(handful))

    async def run(self) -> None:
        """Until delivery closes."""
        while not self._hall.closing:
            try:
                if self._process.fresh and not held(self._clock):
                    await self._round()
            except Exception as error:
                self.log.warn("the queue could not be read: {error!r}", error=error)
                await pace.sleep(self._clock, self._terms.poll_seconds)
            await pace.sleep(self._clock, _BRIEF if self._claimed <= _LITTLE else _FLOOR)
            self._claimed = 0
            if not self._rung and not self._hall.closing:
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
        await self._tend("holds", poll, self._hall.respect_holds)
        await self._tend("old holds", _FORGET_EVERY, lambda: self._queue.forget_holds(self._region, now - FORGOTTEN))
        await self._tend("expiry", _EXPIRY_EVERY, self._expire)
        await self._tend("lost leases", _LOST_EVERY, self._find_lost)
        full = {name for name, lane in self._hall.lanes.items() if lane.room < 1} | self._placed
        ready = await self._queue.ready(self._region, now, [*full, *self._holds.names()], _LOOK)
        found = {each.destination: each.bulk for each in ready if each.next_at <= now}
        self._backlog = set(found.items()) | {each for each in self._backlog if each[0] in full}
        await gatherResults([self._hall.spawn(self._claim(handful)) for handful in self._handfuls(found)])

    async def _expire(self) -> int:
        """What waited too long; not while everything is held, which says nothing of whether it could be delivered."""
        if self._holds.held(EVERYTHING):
            return 0
        count = await self._queue.expire(pace.now(self._clock), _SWEEP)
        self.expired += count
        return count

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

    def _handfuls(self, destinations: Collection[str]) -> Iterator[dict[str, int]]:
        """How much to claim of each; those of one claim together. As much as there is room for, where there are few: who gets through what
        came of many asks for more by itself."""
        if self._hall.closing or not self._process.fresh or held(self._clock):
            return
        most = max(_FEW, _ROWS // max(1, len(destinations)))
        handful: dict[str, int] = {}
        for destination in destinations:
            if destination in self._placed or self._holds.held(destination):
                continue
            limit = min(self._limit(destination), most)
            if limit < 1:
                continue
            handful[destination] = limit
            self._placed.add(destination)
            if len(handful) >= _HANDFUL:
                yield handful
                handful = {}
        if handful:
            yield handful

    async def _claim(self, wanted: Mapping[str, int]) -> None:
        lease = self._process.id
        try:
            async with self._claims:
                claimed = await self._queue.claim(self._region, wanted, pace.now(self._clock), lease, self._hall.along)
        except BaseException:
            self._placed.difference_update(wanted)
            raise
        self._claimed += len(claimed.rows)
        self._hall.brought(claimed.messages)
        found: dict[str, list[Leased]] = {destination: [] for destination in wanted}
        for row in claimed.rows:
            found[row.destination].append(row)
        for destination, rows in found.items():
            more = len(rows) >= wanted[destination]
            if not more:
                self._backlog -= {(destination, False), (destination, True)}
            self._hall.spawn(self._place(destination, rows, lease, more=more))

    def _limit(self, destination: str) -> int:
        left = self._terms.emails - len(self._hall.mine)
        lane = self._hall.lanes.get(destination)
        if lane is not None:
            return min(lane.room, left, _MANY)
        known = self._placing.known(destination)
        to_sort = isinstance(known, NoMail) or (isinstance(known, Route) and known.destination != destination)
        return min(_MANY if to_sort else _FEW, left)

    async def _place(self, destination: str, rows: Sequence[Leased], lease: int, *, more: bool) -> None:
        try:
            await self._placing.place(destination, rows, lease, self._hall.own_claimed)
        finally:
            self._placed.discard(destination)
            if more:
                self.ring()

    async def _find_lost(self) -> int:
        """Rows with our lease that we know nothing of, twice in a row: a commit whose answer never came."""
        held = set(await self._queue.leased(self._process.id))
        unknown = held - self._hall.mine
        lost, self._lost = unknown & self._lost, unknown
        if lost:
            self.log.warn("{count} leases were lost track of and go back to the queue", count=len(lost))
            await self._queue.release(sorted(lost), self._process.id)
        return 0
