"""Short work off the reactor's thread: what waits together goes and comes back together.

Handing one piece to a thread and its result back costs more than many a piece itself. Here a thread takes piece after piece
while there are any, and comes back with several results at once. For work that takes a millisecond; longer: memory.in_thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_AT_ONCE = 8  # results that come back together at most: the first of them waits for the others,
_SECONDS = 0.003  # but not for long


@attrs.define(eq=False)
class Offload:
    """Called with a function, gives a Deferred of its result. At most `most` threads of the reactor's pool work for it."""

    reactor: Any
    most: int = 2
    _waiting: deque[tuple[Callable[[], Any], Deferred[Any]]] = attrs.field(factory=deque, init=False)
    _working: int = attrs.field(default=0, init=False)

    def __call__(self, work: Callable[[], Any]) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        self._waiting.append((work, result))
        self._staff()
        return result

    def _staff(self) -> None:
        if self._working < self.most and len(self._waiting) > self._working * _AT_ONCE:
            self._working += 1
            self.reactor.getThreadPool().callInThread(self._work)

    def _work(self) -> None:
        """In a thread."""
        while done := self._do():
            self.reactor.callFromThread(self._give, done)
        self.reactor.callFromThread(self._rest)

    def _do(self) -> list[tuple[Deferred[Any], Any]]:
        done: list[tuple[Deferred[Any], Any]] = []
        until = monotonic() + _SECONDS
        while self._waiting and len(done) < _AT_ONCE and (not done or monotonic() < until):
            try:
                work, result = self._waiting.popleft()
            except IndexError:  # the other thread was faster
                break
            try:
                done.append((result, work()))
            except Exception:
                done.append((result, Failure()))
        return done

    def _give(self, done: list[tuple[Deferred[Any], Any]]) -> None:
        for result, value in done:
            result.callback(value)

    def _rest(self) -> None:
        """What came while the thread was on its way back needs another one."""
        self._working -= 1
        self._staff()
