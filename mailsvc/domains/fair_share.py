"""A bounded number of places for work of many accounts, of which no account gets all: they take turns, and each has a share."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import attrs
from twisted.internet.defer import CancelledError, Deferred


@attrs.define(eq=False)
class FairShare:
    """`places` at once, at most `share` of them for one key; keys that wait take turns.

    At most `waiting` wait for one key; whoever comes after them gets `Busy`.
    """

    places: int
    share: int
    waiting: int = 1000
    _taken: Counter[Hashable] = attrs.field(factory=Counter, init=False)
    _queues: OrderedDict[Hashable, deque[Deferred[None]]] = attrs.field(factory=OrderedDict, init=False)
    _giving: bool = attrs.field(default=False, init=False)

    @asynccontextmanager
    async def place(self, key: Hashable) -> AsyncIterator[None]:
        """A place for the time of the block; it is waited for."""
        if self._taken.total() < self.places and self._taken[key] < self.share:
            self._taken[key] += 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._taken[key] -= 1
            self._taken += Counter()  # forgets the keys that have none
            self._next()

    async def _wait(self, key: Hashable) -> None:
        queue = self._queues.setdefault(key, deque())
        if len(queue) >= self.waiting:
            raise Busy
        turn: Deferred[None] = Deferred()
        queue.append(turn)
        try:
            await turn
        except CancelledError:
            if turn in queue:
                queue.remove(turn)
                if not queue:
                    self._queues.pop(key, None)
            raise

    def _next(self) -> None:
        """Give free places to those who wait: one for each key, then again."""
        if self._giving:  # work that ends at once comes back here; the loop below goes on with it
            return
        self._giving = True
        try:
            while (key := self._whose_turn()) is not None:
                queue = self._queues.pop(key)
                turn = queue.popleft()
                if queue:
                    self._queues[key] = queue  # behind the others
                self._taken[key] += 1
                turn.callback(None)
        finally:
            self._giving = False

    def _whose_turn(self) -> Hashable | None:
        if self._taken.total() >= self.places:
            return None
        return next((key for key in self._queues if self._taken[key] < self.share), None)


class Busy(Exception):
    """Too much of this key waits already."""
