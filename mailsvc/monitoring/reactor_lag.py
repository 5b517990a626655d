"""How late the reactor comes to what is due: whatever blocks it makes everything else wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

EVERY = 0.5


@attrs.define(eq=False)
class Lateness:
    """Tells `observe` twice a second by how many seconds a call came too late. `monotonic` tells seconds."""

    reactor: Any
    monotonic: Callable[[], float]
    observe: Callable[[float], None]
    _call: Any = attrs.field(default=None, init=False)

    def start(self) -> None:
        self._call = self.reactor.callLater(EVERY, self._look, self.monotonic() + EVERY)

    def stop(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _look(self, due: float) -> None:
        self.observe(max(0.0, self.monotonic() - due))
        self.start()
