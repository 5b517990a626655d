"""Work off the reactor's thread: `Threads` has a pool for each kind of long work, `Offload` takes short work in handfuls.

Handing one piece of short work to a thread and its result back costs more than many a piece itself. `Offload` lets a thread take
piece after piece while there are any, and come back with several results at once. It is for work that takes a millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

_AT_ONCE = 8  # results that come back together at most: the first of them waits for the others,
_SECONDS = 0.003  # but not for long


SIGNING, BODIES, PASSWORDS = 2, 4, 2  # threads of each pool


@attrs.frozen
class Threads:
    """Pools that do not wait for each other: a flood of large bodies delays neither signatures nor sign-ins.

    `signing`: of messages that are small. `bodies`: whatever looks at a whole message or request. `passwords`: their hashes. Everything
    else, names and files above all, is for the reactor's own pool.
    """

    reactor: Any
    signing: ThreadPool
    bodies: ThreadPool
    passwords: ThreadPool

    @classmethod
    def start(cls, reactor: Any) -> Threads:
        """All threads are there from the start, since whoever begins one waits until it runs."""
        pools = [ThreadPool(size, size, name) for name, size in (("signing", SIGNING), ("bodies", BODIES), ("passwords", PASSWORDS))]
        for pool in pools:
            reactor.callWhenRunning(pool.start)
            reactor.addSystemEventTrigger("during", "shutdown", pool.stop)
        return cls(reactor, *pools)

    def body(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return deferToThreadPool(self.reactor, self.bodies, work)

    def password(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return deferToThreadPool(self.reactor, self.passwords, work)


@attrs.define(eq=False)
class Offload:
    """Called with a function, gives a Deferred of its result. At most `most` threads of a pool work for it; by default the reactor's."""

    reactor: Any
    most: int = 2
    pool: Any = None
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
            (self.pool or self.reactor.getThreadPool()).callInThread(self._work)

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
