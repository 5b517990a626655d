"""The figures of the database for /metrics and the console: read once for all who ask meanwhile, and never waited for long.

If Postgres hangs, a statement fails only after 35 seconds. Prometheus gives up on a response after ten, and would then get nothing at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError

from mailsvc.store.logs.figures import Reading
from mailsvc.store.postgres.errors import Unavailable

PATIENCE = 5.0  # seconds to wait for a reading
KEPT = 120.0  # seconds for which the previous one is returned while the next takes longer than that
# With a large queue, a reading costs Postgres seconds. One that took so long is returned for a multiple of that time.
COSTLY, TIMES, LONGEST = 1.0, 10.0, 60.0  # seconds, and the multiple


@attrs.define(eq=False)
class Latest:
    """What `read` returns."""

    clock: Any
    read: Callable[[], Awaitable[Reading]]
    _reading: bool = attrs.field(default=False, init=False)
    _waiting: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _found: tuple[float, Reading] | None = attrs.field(default=None, init=False)  # and when
    _good: float = attrs.field(default=0.0, init=False)  # seconds for which it is not read again
    _error: Exception | None = attrs.field(default=None, init=False)

    async def get(self) -> Reading:
        """Returns new figures, or if they take long, those of the last time. Raises why there are none."""
        if not self._reading and not self._is_recent():
            self._reading, self._error = True, None
            Deferred.fromCoroutine(self._read())
        if self._reading:
            await self._patiently()
        if self._error is not None:
            raise self._error
        if self._found is None or self.clock.seconds() - self._found[0] > KEPT:
            raise Unavailable(f"It has not answered for {PATIENCE:g} s.")
        return self._found[1]

    def _is_recent(self) -> bool:
        return self._found is not None and 0 <= self.clock.seconds() - self._found[0] < self._good

    async def _patiently(self) -> None:
        ended: Deferred[None] = Deferred()
        self._waiting.append(ended)
        try:
            await ended.addTimeout(PATIENCE, self.clock)
        except TimeoutError:
            self._waiting = [each for each in self._waiting if each is not ended]

    async def _read(self) -> None:
        began = self.clock.seconds()
        try:
            found = await self.read()
            ended = self.clock.seconds()
            self._found, self._good = (ended, found), _good_for(ended - began)
        except Exception as error:
            self._found, self._error = None, error
        self._reading = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)


def _good_for(took: float) -> float:
    return min(TIMES * took, LONGEST) if took >= COSTLY else 0.0
