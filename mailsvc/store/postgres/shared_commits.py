"""Shared commits: the items of concurrent callers become one write, and each caller gets its own result.

The `write` function knows what an item is. It gets a list of them, writes all or none, and returns one result per item in order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, fail

from mailsvc.store.postgres.errors import OutOfResources, Transient, Unavailable
from mailsvc.store.postgres.idle import Idle

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGER = 3.0  # times
PATIENCE = 10.0  # seconds
PER_LATE = 3.0  # seconds more for each second that the reactor is late


@attrs.define(eq=False)
class _Pending(Generic[Item, Result]):
    item: Item
    weight: int
    since: float
    result: Deferred[Result] = attrs.field(factory=Deferred)

    def succeed(self, result: Result) -> None:
        if not self.result.called:  # otherwise its caller was cancelled
            self.result.callback(result)

    def fail(self, error: Exception) -> None:
        if not self.result.called:
            self.result.errback(error)


@attrs.define(eq=False)
class SharedCommits(Generic[Item, Result]):
    """A write starts `linger` seconds after its first item arrived, or as soon as it is full; at most `writes` run at once.

    A caller that knows how many items can come says so with `expected`. A write with so many does not wait for more.

    If the reactor is late, the process is short of time, and fewer writes with more items save some: then items linger for up to
    LONGER times as long. With `idle`, they do not linger once the reactor has nothing else to do and no write is running.

    Items that arrive while all writes are running are collected for the next one. If `prompt`, a single item does not linger: its
    write starts in the next turn of the reactor, unless one is running or the previous one had several items.

    - If a write of several items fails, each is written again separately, so that a bad item fails alone. But if it is unknown whether
      the commit succeeded, or the database is down or full, all items fail. So do those that are left after PATIENCE seconds if the write
      failed because of a lock or its time limit: it may be the same for each, and their callers wait.
    - An item heavier than `max_weight` is written alone.
    - At most `queue` items with a total weight of `queue_weight` wait; further ones fail with `Unavailable`.
    - If a write fails because of the database, so do the items that have been waiting for longer than `longest_wait` seconds. Otherwise
      they would wait for the time limit of each write before theirs, long after their callers have given up.
    - Cancelling a caller does not affect the others; its item is written nevertheless.
    """

    write: Callable[[list[Item]], Awaitable[list[Result]]]
    clock: Any
    max_items: int = 100
    max_weight: int = 4 << 20
    linger: float = 0.002
    writes: int = 2
    queue: int = 10_000
    queue_weight: int = 256 << 20
    longest_wait: float = math.inf
    prompt: bool = True
    idle: Idle | None = None
    written: int = attrs.field(default=0, init=False)  # writes since the start; `items`: items in them
    items: int = attrs.field(default=0, init=False)
    _pending: deque[_Pending[Item, Result]] = attrs.field(factory=deque, init=False)
    _weight: int = attrs.field(default=0, init=False)
    _running: int = attrs.field(default=0, init=False)
    _timer: Any = attrs.field(default=None, init=False)
    _due: bool = attrs.field(default=False, init=False)
    _starting: bool = attrs.field(default=False, init=False)
    _expected: int = attrs.field(default=0, init=False)
    _shared: bool = attrs.field(default=False, init=False)  # the latest write had several items
    _due_at: float = attrs.field(default=0.0, init=False)  # when the timer should fire
    _late: float = attrs.field(default=0.0, init=False)  # seconds, the average of the last few times

    def submit(self, item: Item, weight: int = 1, expected: int | None = None) -> Deferred[Result]:
        if len(self._pending) >= self.queue or (self._pending and self._weight + weight > self.queue_weight):
            return fail(Unavailable(f"{len(self._pending)} other items are waiting to be written."))
        pending: _Pending[Item, Result] = _Pending(item, weight, self.clock.seconds())
        self._pending.append(pending)
        self._weight += weight
        self._expected = self.max_items if expected is None else expected
        self._start_writes()
        return pending.result

    @property
    def waiting(self) -> int:
        """The number of items whose write has not started."""
        return len(self._pending)

    def _start_writes(self) -> None:
        """Start the writes that may start now, and a timer for the rest."""
        if self._starting:  # called when a write has ended at once; the loop below continues
            return
        self._starting = True
        try:
            while self._pending and self._running < self.writes and (self._due or self._full()):
                self._due = False
                self._start(self._gather())
        finally:
            self._starting = self._due = False
        if self._pending and self._running < self.writes and self._timer is None:
            alone = self.prompt and not self._shared and not self._running
            self._set_timer(0.0 if alone else min(self.linger + PER_LATE * self._late, LONGER * self.linger))
            if self.idle is not None and not alone and not self._running:
                self.idle.watch(self._idled)

    def _full(self) -> bool:
        return len(self._pending) >= min(self._expected, self.max_items) or self._weight >= self.max_weight

    def _set_timer(self, seconds: float) -> None:
        self._due_at = self.clock.seconds() + seconds
        self._timer = self.clock.callLater(seconds, self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        late = min(max(0.0, self.clock.seconds() - self._due_at), LONGER * self.linger)
        self._late += (late - self._late) / 8
        self._start_due()

    def _idled(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._start_due()

    def _start_due(self) -> None:
        self._due = bool(self._pending)
        self._start_writes()

    def _gather(self) -> list[_Pending[Item, Result]]:
        taken: list[_Pending[Item, Result]] = []
        weight = 0
        while self._pending and len(taken) < self.max_items:
            following = self._pending[0]
            if taken and weight + following.weight > self.max_weight:
                break
            taken.append(self._pending.popleft())
            weight += following.weight
        self._weight -= weight
        return taken

    def _start(self, batch: list[_Pending[Item, Result]]) -> None:
        self._running += 1
        if self.idle is not None:
            self.idle.stop()
        self._shared = len(batch) > 1
        Deferred.fromCoroutine(self._write(batch)).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._running -= 1
        self._start_due()  # items that waited for this write have lingered long enough

    async def _write(self, batch: list[_Pending[Item, Result]]) -> None:
        try:
            results = await self._written([pending.item for pending in batch])
        except Exception as error:
            if isinstance(error, Transient):
                self._fail_overdue()
            if len(batch) == 1 or isinstance(error, (Unavailable, OutOfResources)):
                for pending in batch:
                    pending.fail(error)
            else:
                until = self.clock.seconds() + PATIENCE
                for pending in batch:
                    if isinstance(error, Transient) and self.clock.seconds() > until:
                        pending.fail(error)
                    else:
                        await self._write([pending])
        else:
            for pending, result in zip(batch, results, strict=True):
                pending.succeed(result)

    def _fail_overdue(self) -> None:
        overdue = self.clock.seconds() - self.longest_wait
        while self._pending and self._pending[0].since < overdue:
            pending = self._pending.popleft()
            self._weight -= pending.weight
            pending.fail(Unavailable(f"Its write did not start within {self.longest_wait:g} s, because others failed."))

    async def _written(self, items: list[Item]) -> list[Result]:
        self.written += 1
        self.items += len(items)
        results = await self.write(items)
        if len(results) != len(items):
            raise AssertionError(f"{len(items)} items were written, but {len(results)} results returned.")
        return results
