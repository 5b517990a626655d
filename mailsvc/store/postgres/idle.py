"""Calls a function as soon as the reactor has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import attrs

_EMPTY = 0.0001  # seconds: an iteration that takes longer had something to do. On a slow machine, an empty one may take longer too.


@attrs.define(eq=False)
class Idle:
    """Watches for one thing at a time. `clock` has callLater; `now` measures how long an iteration takes."""

    clock: Any
    now: Callable[[], float] = monotonic
    _looking: bool = attrs.field(default=False, init=False)
    _function: Callable[[], None] | None = attrs.field(default=None, init=False)

    def watch(self, function: Callable[[], None]) -> None:
        """Call it after the first iteration that does nothing else, at the earliest the next one. It replaces the one before."""
        self._function = function
        if not self._looking:
            self._look_next(None)

    def stop(self) -> None:
        """The function is not called any more."""
        self._function = None

    def _look_next(self, begun: float | None) -> None:
        self._looking = True
        self.clock.callLater(0, self._look, begun)

    def _look(self, begun: float | None) -> None:
        self._looking = False
        if self._function is None:
            return
        now = self.now()
        if begun is not None and now - begun < _EMPTY:
            function, self._function = self._function, None
            function()
        else:
            self._look_next(now)
