"""Measures how late the reactor runs scheduled calls: anything that blocks it delays everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

EVERY = 0.5  # seconds


@attrs.define(eq=False)
class ReactorLag:
    """Reports to `observe`, twice a second, how many seconds late a call was. `monotonic` returns the time in seconds."""

    reactor: Any
    monotonic: Callable[[], float]
    observe: Callable[[float], None]
    _call: Any = attrs.field(default=None, init=False)

    def start(self) -> None:
        self._call = self.reactor.callLater(EVERY, self._measure, self.monotonic() + EVERY)

    def stop(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _measure(self, due: float) -> None:
        self.observe(max(0.0, self.monotonic() - due))
        self.start()
