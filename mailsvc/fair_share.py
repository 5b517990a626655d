"""Limits concurrent work of many accounts. Accounts take turns, and each can use only a share."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import attrs
from twisted.internet.defer import CancelledError, Deferred


@attrs.define(eq=False)
class FairShare:
    """At most `places` at a time, `share` of them for one key. Waiting keys take turns.

    At most `waiting` may wait for one key; beyond that, `place` raises TooManyWaiting.
    """

    places: int
    share: int
    waiting: int = 1000
    _taken: Counter[Hashable] = attrs.field(factory=Counter, init=False)
    _queues: OrderedDict[Hashable, deque[Deferred[None]]] = attrs.field(factory=OrderedDict, init=False)
    _assigning: bool = attrs.field(default=False, init=False)

    @asynccontextmanager
    async def place(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a place and hold it during the block."""
        if self._taken.total() < self.places and self._taken[key] < self.share:
            self._taken[key] += 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._taken[key] -= 1
            self._taken += Counter()  # drops keys without places
            self._next()

    async def _wait(self, key: Hashable) -> None:
        queue = self._queues.setdefault(key, deque())
        if len(queue) >= self.waiting:
            raise TooManyWaiting
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
        """Give free places to waiting keys in turns."""
        if self._assigning:  # called again by work that finished immediately; the loop below continues
            return
        self._assigning = True
        try:
            while (key := self._next_key()) is not None:
                queue = self._queues.pop(key)
                turn = queue.popleft()
                if queue:
                    self._queues[key] = queue  # behind the others
                self._taken[key] += 1
                turn.callback(None)
        finally:
            self._assigning = False

    def _next_key(self) -> Hashable | None:
        if self._taken.total() >= self.places:
            return None
        return next((key for key in self._queues if self._taken[key] < self.share), None)


class TooManyWaiting(Exception):
    """Too much work of this key is waiting."""
