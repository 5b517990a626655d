"""The polling loop: calls a function when woken and at least once per interval, one call at a time.

Every part that polls does so with `PollingLoop`, except reconnection inside store/postgres.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.store.postgres.errors import StoreError

LONGEST_RETRY = 5.0  # seconds to which pauses after failures grow, unless the interval is longer
WOKEN_RETRY = 0.1  # seconds after a failure before a wake-up may poll again
EXPECTED = (StoreError, TimeoutError)


def _no_rest(seconds: float) -> float:
    return 0.0


@attrs.define(eq=False)
class PollingLoop:
    """Polls from `start` to `stop`. `what` names the work in the log, as in "numbering events".

    After a failure it polls again in `retry` seconds (default: `interval`), after each further one in twice as many. Failures that are
    not `expected` are logged with a traceback. `deadline` cancels a poll that takes longer. `rest` is given how long a poll took, and
    returns for how many seconds after it no wake-up starts another.
    """

    log = Logger()

    clock: Any
    what: str
    poll: Callable[[], Awaitable[object]]
    interval: float
    retry: float | None = None
    deadline: float | None = None
    rest: Callable[[float], float] = _no_rest
    expected: tuple[type[Exception], ...] = EXPECTED
    failures: int = attrs.field(default=0, init=False)  # in a row
    _running: bool = attrs.field(default=False, init=False)
    _polling: bool = attrs.field(default=False, init=False)
    _woken: bool = attrs.field(default=False, init=False)  # since the last poll began
    _timer: Any = attrs.field(default=None, init=False)
    _not_before: float = attrs.field(default=float("-inf"), init=False)
    _stopping: list[Deferred[None]] = attrs.field(factory=list, init=False)

    def start(self, *, at_once: bool = True) -> None:
        """Poll at once, or first after an interval."""
        self._running = True
        self._schedule(0.0 if at_once else self.interval)

    def wake(self) -> None:
        """Poll soon. During a poll: once more after it."""
        if self._running and not self._woken:
            self._woken = True
            if not self._polling:
                self._schedule(0.0)

    async def stop(self) -> None:
        """Poll no more. Returns when the poll under way, if any, has ended."""
        self._running = self._woken = False
        self._cancel()
        if self._polling:
            ended: Deferred[None] = Deferred()
            self._stopping.append(ended)
            await ended

    def _schedule(self, seconds: float) -> None:
        self._cancel()
        self._timer = self.clock.callLater(max(seconds, self._not_before - self.clock.seconds()), self._begin)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer, self._woken, self._polling = None, False, True
        Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        began, pause = self.clock.seconds(), self.interval
        try:
            polled = Deferred.fromCoroutine(_awaited(self.poll))
            if self.deadline is not None:
                polled.addTimeout(self.deadline, self.clock)
            await polled
        except Exception as error:
            pause = self._failed(error)
        else:
            self.failures = 0
        now = self.clock.seconds()
        self._not_before = now + max(self.rest(now - began), WOKEN_RETRY if self.failures else 0.0)
        self._polling = False
        stopping, self._stopping = self._stopping, []
        for ended in stopping:
            ended.callback(None)
        if self._running:
            self._schedule(0.0 if self._woken else pause)

    def _failed(self, error: Exception) -> float:
        """Log it; in how many seconds to try again."""
        first = self.interval if self.retry is None else self.retry
        pause: float = min(first * 2 ** min(self.failures, 30), max(self.interval, LONGEST_RETRY))
        self.failures += 1
        if isinstance(error, self.expected):
            self.log.warn(
                "{what} failed, retrying in {pause:g} s: {error}", what=self.what, pause=pause, error=str(error) or type(error).__name__
            )
        else:
            self.log.failure("{what} failed unexpectedly, retrying in {pause:g} s", what=self.what, pause=pause)
        return pause


def every(clock: Any, seconds: float, what: str, poll: Callable[[], Awaitable[object]], **options: Any) -> Callable[[], Awaitable[None]]:
    """Start a loop that first polls after an interval. Returns what stops it."""
    loop = PollingLoop(clock, what, poll, seconds, **options)
    loop.start(at_once=False)
    return loop.stop


async def _awaited(poll: Callable[[], Awaitable[object]]) -> object:
    return await poll()
