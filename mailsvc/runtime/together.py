"""Work that is faster for several at once: what is asked for in one turn of the reactor is done at its end.

For work of which a batch takes the reactor's thread a few milliseconds. Longer work belongs in a thread (offload).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

Value = TypeVar("Value")
Result = TypeVar("Result")

_SECONDS = 0.003  # of a turn, after which the rest waits for the next one


@attrs.define(eq=False)
class Together(Generic[Value, Result]):
    """Call it with a function. `combine` turns the values of up to `most` such functions into the results, in their order.

    A function that raises fails alone. If `combine` raises, the whole batch fails. `clock` has callLater; `now` measures how long a
    turn takes.
    """

    clock: Any
    combine: Callable[[list[Value]], list[Result] | Deferred[list[Result]]]
    most: int
    now: Callable[[], float] = monotonic
    _waiting: deque[tuple[Callable[[], Value], Deferred[Result]]] = attrs.field(factory=deque, init=False)
    _scheduled: bool = attrs.field(default=False, init=False)

    def __call__(self, work: Callable[[], Value]) -> Deferred[Result]:
        result: Deferred[Result] = Deferred()
        self._waiting.append((work, result))
        self._schedule()
        return result

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self.clock.callLater(0, self._turn)

    def _turn(self) -> None:
        until = self.now() + _SECONDS
        try:
            while self._waiting:
                self._batch(until)
                if self.now() >= until:
                    break
        finally:
            self._scheduled = False
            self._schedule()

    def _batch(self, until: float) -> None:
        values: list[Value] = []
        results: list[Deferred[Result]] = []
        while self._waiting and len(values) < self.most and (not values or self.now() < until):
            work, result = self._waiting.popleft()
            try:
                values.append(work())
            except Exception:
                result.errback()
            else:
                results.append(result)
        if values:
            maybeDeferred(self.combine, values).addCallbacks(_succeed, _fail, callbackArgs=(results,), errbackArgs=(results,))


def _succeed(combined: list[Result], results: list[Deferred[Result]]) -> None:
    for result, each in zip(results, combined, strict=True):
        result.callback(each)


def _fail(failure: Failure, results: list[Deferred[Result]]) -> None:
    for result in results:
        result.errback(failure)
