"""Claiming: how many rows of which destinations to lease from the queue, and the backlog that new mail must not overtake.

When it looks at the queue: service. Where claimed rows go: placing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from twisted.internet.defer import gatherResults

from mailsvc.delivery import pace
from mailsvc.delivery.admission.decision import Admission
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.connection.route import NoMail, Route
from mailsvc.delivery.lane import Lane
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LOST, LeaseBook
from mailsvc.delivery.placing import Placing
from mailsvc.delivery.process_queue import ProcessQueue
from mailsvc.delivery.tasks import Tasks
from mailsvc.semaphore import Semaphore
from mailsvc.store.queue.claims import Leased

_DESTINATIONS, _ROWS = 40, 400  # of one claim; the rows are divided among its destinations
_FEW = 10  # rows of one destination, however many destinations there are
_CLAIMS = 4  # at once
_LOOK = 1000  # destinations seen in one look
_PAUSE = 0.02, 0.05  # seconds between two looks at the queue, at least and at most, however often the loop is woken
_SHARE = 4  # in between, so many times as long as a look took: with time to spare there are more looks, and mail waits less
_SHORT_PAUSE = 0.01  # after a look that found little: waiting longer would not collect more rows
_LITTLE = 3  # rows


class Backlog:
    """Destinations with due mail in the queue, transactional or bulk. New mail is queued behind it."""

    def __init__(self) -> None:
        self._due: set[tuple[str, bool]] = set()

    def waits(self, destination: str, bulk: bool) -> bool:
        """Whether mail in the queue is sent before a new email. Transactional mail overtakes bulk mail."""
        return (destination, False) in self._due or (bulk and (destination, True) in self._due)

    def add(self, destination: str, bulk: bool) -> None:
        """A new email was queued."""
        self._due.add((destination, bulk))

    def clear(self, destination: str) -> None:
        """A claim took everything."""
        self._due -= {(destination, False), (destination, True)}

    def found(self, due: Mapping[str, bool], not_searched: Collection[str]) -> None:
        """What a look at the queue found: destinations, and whether they have bulk mail only."""
        self._due = set(due.items()) | {each for each in self._due if each[0] in not_searched}


class Claiming:
    """`wake` causes another look at the queue."""

    def __init__(
        self,
        queue: ProcessQueue,
        admission: Admission,
        holds: Holds,
        placing: Placing,
        lanes: Lanes,
        leases: LeaseBook,
        backlog: Backlog,
        tasks: Tasks,
        wake: Callable[[], None],
    ) -> None:
        self._queue, self._admission, self._holds, self._placing, self._lanes = queue, admission, holds, placing, lanes
        self._leases, self._backlog, self._tasks, self._wake = leases, backlog, tasks, wake
        self._claims = Semaphore(_CLAIMS)
        self._in_progress: set[str] = set()  # destinations being claimed from, or whose rows are being placed
        self._rows = 0  # claimed since the last look ended
        lanes.on_room = self.refill

    def refill(self, destination: str) -> None:
        """A lane has room again: claim more for it if more is due."""
        if self._backlog.waits(destination, True):
            for batch in self._batches([destination]):
                self._tasks.spawn(self._claim(batch))

    def rest(self, took: float) -> float:
        """For how many seconds no wake-up causes another look. `took`: seconds of the last one."""
        rows, self._rows = self._rows, 0
        return _SHORT_PAUSE if rows <= _LITTLE else min(max(_PAUSE[0], _SHARE * took), _PAUSE[1])

    @property
    def _skipped(self) -> set[str]:
        """Destinations to leave out: their lanes are full, or a claim is in progress."""
        return {lane.destination for lane in self._lanes if _room(lane) < 1} | self._in_progress

    async def look(self) -> None:
        """Look at the queue, and claim from the destinations that are due."""
        skipped = self._skipped
        ready = await self._queue.ready([*skipped, *self._holds.names()], _LOOK)
        now = pace.now(self._queue.clock)
        due = {each.destination: each.bulk for each in ready if each.next_at <= now}
        self._backlog.found(due, skipped)
        await gatherResults([self._tasks.spawn(self._claim(batch)) for batch in self._batches(due)])

    def _batches(self, destinations: Collection[str]) -> Iterator[dict[str, int]]:
        """How many rows to claim of each destination, some destinations per claim.

        Few destinations get all the rows they have room for. With many, each gets a few; those that deliver theirs ask for more.
        """
        if not self._lanes.accepting or not self._queue.usable:
            return
        most = max(_FEW, _ROWS // max(1, len(destinations)))
        batch: dict[str, int] = {}
        for destination in destinations:
            if destination in self._in_progress or self._holds.held(destination):
                continue
            limit = min(self._limit(destination), most)
            if limit < 1:
                continue
            batch[destination] = limit
            if len(batch) >= _DESTINATIONS:
                self._in_progress.update(batch)
                yield batch
                batch = {}
        if batch:
            self._in_progress.update(batch)
            yield batch

    def _limit(self, destination: str) -> int:
        lane = self._lanes.get(destination)
        if lane is not None:
            return self._admission.rows(room=_room(lane), moves=False, emails=len(self._leases.held))
        known = self._placing.known(destination)
        moves = isinstance(known, NoMail) or (isinstance(known, Route) and known.destination != destination)
        return self._admission.rows(room=None, moves=moves, emails=len(self._leases.held))

    async def _claim(self, wanted: Mapping[str, int]) -> None:
        lease = self._queue.lease
        try:
            async with self._claims:
                begun = self._queue.clock.seconds()
                claimed = await self._queue.claim(wanted, lease, self._leases.claim_bytes)
            if self._queue.clock.seconds() - begun >= LOST:  # its leases may have been given back
                self._in_progress.difference_update(wanted)
                return
            self._rows += len(claimed.rows)
            self._leases.keep_claimed(claimed)
            found: dict[str, list[Leased]] = {destination: [] for destination in wanted}
            for row in claimed.rows:
                found[row.destination].append(row)
        except BaseException:
            self._in_progress.difference_update(wanted)
            raise
        for destination, rows in found.items():
            more = len(rows) >= wanted[destination]
            if not more:
                self._backlog.clear(destination)
            self._tasks.spawn(self._place(destination, rows, lease, more=more))

    async def _place(self, destination: str, rows: Sequence[Leased], lease: int, *, more: bool) -> None:
        try:
            await self._placing.place(destination, rows, lease)
        finally:
            self._in_progress.discard(destination)
            if more:
                self._wake()


def _room(lane: Lane) -> int:
    """How many emails may be claimed. A quarter of the window is left to new mail, which would otherwise be queued behind them."""
    return max(0, lane.room - lane.window // 4)
