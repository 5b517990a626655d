"""Long work on the reactor's thread, in slices, so that the reactor can serve others in between.

All such work together gets `seconds` of each turn of the reactor. Await `pause()` before each piece of work. A piece that takes
longer than a slice belongs in a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import attrs
from twisted.internet.defer import Deferred

SECONDS = 0.005


@attrs.define(eq=False)
class Slices:
    """`clock` has callLater; `now` measures how long a slice takes."""

    clock: Any
    seconds: float = SECONDS
    now: Callable[[], float] = monotonic
    _waiting: deque[Deferred[None]] = attrs.field(factory=deque, init=False)
    _until: float | None = attrs.field(default=None, init=False)  # the end of the current slice
    _scheduled: bool = attrs.field(default=False, init=False)

    async def pause(self) -> None:
        """Wait until the next piece may run: at once within a slice, otherwise in a later turn, after those already waiting."""
        if self._until is not None and self.now() < self._until:
            return
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self.clock.callLater(0, self._slice)

    def _slice(self) -> None:
        self._scheduled = False
        self._until = self.now() + self.seconds
        try:
            while self._waiting and self.now() < self._until:
                self._waiting.popleft().callback(None)
        finally:
            self._until = None
            self._schedule()
