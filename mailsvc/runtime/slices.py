"""Long work on the reactor's thread, in slices: between two of them everybody else has a turn of the reactor.

All such work together has `seconds` of a turn. Whoever does it awaits `pause()` before each piece; a piece that itself takes
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
    """`clock` has callLater; `now` tells how long a slice has lasted."""

    clock: Any
    seconds: float = SECONDS
    now: Callable[[], float] = monotonic
    _waiting: deque[Deferred[None]] = attrs.field(factory=deque, init=False)
    _until: float | None = attrs.field(default=None, init=False)  # while a slice lasts, its end
    _due: bool = attrs.field(default=False, init=False)

    async def pause(self) -> None:
        """Until the next piece may be done: at once in a slice that is not over, else in a later turn, after all who wait already."""
        if self._until is not None and self.now() < self._until:
            return
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        self._call()
        await turn

    def _call(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self.clock.callLater(0, self._slice)

    def _slice(self) -> None:
        self._due = False
        self._until = self.now() + self.seconds
        try:
            while self._waiting and self.now() < self._until:
                self._waiting.popleft().callback(None)
        finally:
            self._until = None
            self._call()
