"""Shared commits: what concurrent callers want written becomes one write, and each gets its own result.

What an item is and how a list of them is written is the business of the `write` function. It gives as many results as it
got items, in their order, and writes all of them or none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, fail

from mailsvc.store.postgres.errors import OutOfResources, Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


@attrs.define(eq=False)
class _Place(Generic[Item, Result]):
    item: Item
    weight: int
    answer: Deferred[Result] = attrs.field(factory=Deferred)

    def succeed(self, result: Result) -> None:
        if not self.answer.called:  # or its caller has left
            self.answer.callback(result)

    def fail(self, error: Exception) -> None:
        if not self.answer.called:
            self.answer.errback(error)


@attrs.define(eq=False)
class SharedCommits(Generic[Item, Result]):
    """
    A write starts `linger` seconds after its first item came, or as soon as it is full; never more than `writes` at once.
    What comes while all are under way is gathered for the next one. A `prompt` batch does not linger while items come singly: its
    write starts in the next turn of the reactor, unless one is under way or the one before had several items.

    - A write of several items that fails is done again item by item, so one that cannot be written fails alone.
      But when nobody knows whether it was committed, or the database is away or full, all of its items fail.
    - An item whose weight is above `max_weight` is written alone.
    - At most `queue` items and `queue_weight` wait; more are refused with `Unavailable`.
    - A caller that leaves changes nothing for the others; its item is written all the same.
    """

    write: Callable[[list[Item]], Awaitable[list[Result]]]
    clock: Any
    max_items: int = 100
    max_weight: int = 4 << 20
    linger: float = 0.002
    writes: int = 2
    queue: int = 10_000
    queue_weight: int = 256 << 20
    prompt: bool = True
    written: int = attrs.field(default=0, init=False)  # how many writes there were, and of how many items
    items: int = attrs.field(default=0, init=False)
    _places: deque[_Place[Item, Result]] = attrs.field(factory=deque, init=False)
    _weight: int = attrs.field(default=0, init=False)
    _under_way: int = attrs.field(default=0, init=False)
    _timer: Any = attrs.field(default=None, init=False)
    _due: bool = attrs.field(default=False, init=False)
    _shared: bool = attrs.field(default=False, init=False)  # the newest write had several items

    def submit(self, item: Item, weight: int = 1) -> Deferred[Result]:
        if len(self._places) >= self.queue or (self._places and self._weight + weight > self.queue_weight):
            return fail(Unavailable(f"{len(self._places)} others wait to be written."))
        place: _Place[Item, Result] = _Place(item, weight)
        self._places.append(place)
        self._weight += weight
        self._consider()
        return place.answer

    @property
    def waiting(self) -> int:
        """How many items wait for their write to start."""
        return len(self._places)

    @property
    def waiting_weight(self) -> int:
        return self._weight

    def _consider(self) -> None:
        """Start what may start now; see to it that the rest starts later."""
        while self._places and self._under_way < self.writes and (self._due or self._full()):
            self._due = False
            self._start(self._gather())
        if self._places and self._under_way < self.writes and self._timer is None:
            alone = self.prompt and not self._shared and not self._under_way
            self._timer = self.clock.callLater(0 if alone else self.linger, self._lingered)

    def _full(self) -> bool:
        return len(self._places) >= self.max_items or self._weight >= self.max_weight

    def _lingered(self) -> None:
        self._timer = None
        self._due = True
        self._consider()
        self._due = False

    def _gather(self) -> list[_Place[Item, Result]]:
        taken: list[_Place[Item, Result]] = []
        weight = 0
        while self._places and len(taken) < self.max_items:
            following = self._places[0]
            if taken and weight + following.weight > self.max_weight:
                break
            taken.append(self._places.popleft())
            weight += following.weight
        self._weight -= weight
        return taken

    def _start(self, places: list[_Place[Item, Result]]) -> None:
        self._under_way += 1
        self._shared = len(places) > 1
        Deferred.fromCoroutine(self._write(places)).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._under_way -= 1
        # What waited while this was under way has lingered enough.
        self._due = bool(self._places)
        self._consider()
        self._due = False

    async def _write(self, places: list[_Place[Item, Result]]) -> None:
        try:
            results = await self._written([place.item for place in places])
        except Exception as error:
            if len(places) == 1 or isinstance(error, (Unavailable, OutOfResources)):
                for place in places:
                    place.fail(error)
            else:
                for place in places:
                    await self._write([place])
        else:
            for place, result in zip(places, results, strict=True):
                place.succeed(result)

    async def _written(self, items: list[Item]) -> list[Result]:
        self.written += 1
        self.items += len(items)
        results = await self.write(items)
        if len(results) != len(items):
            raise AssertionError(f"{len(items)} items were written, {len(results)} results came back.")
        return results
