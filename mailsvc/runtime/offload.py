"""Work off the reactor's thread: `Threads` has a pool per kind of long work, `Offload` batches short work.

Passing one piece of work to a thread and its result back often costs more than the work. With `Offload` a thread takes piece after
piece while there are any, and returns several results at once. It is for work that takes about a millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

T = TypeVar("T")
_BATCH = 8  # results returned together at most
_BATCH_SECONDS = 0.003  # and for how long the first of them may wait for the others


class InThread(Protocol):
    """Runs a function off the reactor's thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


BODIES, PASSWORDS = 4, 2  # threads of each pool


@attrs.frozen
class Threads:
    """Separate pools, so that a flood of large bodies does not delay sign-ins.

    `bodies` processes whole messages and requests, `passwords` hashes passwords. Everything else, mainly name lookups and files, uses the
    reactor's own pool.
    """

    reactor: Any
    bodies: ThreadPool
    passwords: ThreadPool

    @classmethod
    def start(cls, reactor: Any) -> Threads:
        """All threads are started now, because starting one later would block the reactor until it runs."""
        pools = [ThreadPool(size, size, name) for name, size in (("bodies", BODIES), ("passwords", PASSWORDS))]
        for pool in pools:
            reactor.callWhenRunning(pool.start)
            reactor.addSystemEventTrigger("during", "shutdown", pool.stop)
        return cls(reactor, *pools)

    def body(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return self._run(self.bodies, work)

    def password(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return self._run(self.passwords, work)

    def _run(self, pool: ThreadPool, work: Callable[[], Any]) -> Deferred[Any]:
        one = [work]
        return deferToThreadPool(self.reactor, pool, _replace_with_result, one).addCallback(lambda _: one.pop())


@attrs.define(eq=False)
class Offload:
    """Call it with a function to get a Deferred of its result. Uses at most `max_threads` of the reactor's pool."""

    reactor: Any
    max_threads: int = 2
    _waiting: deque[tuple[Callable[[], Any], Deferred[Any]]] = attrs.field(factory=deque, init=False)
    _threads: int = attrs.field(default=0, init=False)

    def __call__(self, work: Callable[[], Any]) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        self._waiting.append((work, result))
        self._start_thread()
        return result

    def _start_thread(self) -> None:
        if self._threads < self.max_threads and len(self._waiting) > self._threads * _BATCH:
            self._threads += 1
            try:
                self.reactor.getThreadPool().callInThread(self._work)
            except Exception:  # the system allows no more threads
                self._threads -= 1
                self._fail()

    def _fail(self) -> None:
        """Everything that waits, unless a thread still runs and takes it."""
        while self._waiting and not self._threads:
            _, result = self._waiting.popleft()
            result.errback()

    def _work(self) -> None:
        """Runs in a thread."""
        while done := self._run_batch():
            self.reactor.callFromThread(self._deliver, done)
        self.reactor.callFromThread(self._thread_ended)

    def _run_batch(self) -> list[tuple[Deferred[Any], list[Any]]]:
        done: list[tuple[Deferred[Any], list[Any]]] = []
        until = monotonic() + _BATCH_SECONDS
        while self._waiting and len(done) < _BATCH and (not done or monotonic() < until):
            try:
                done.append(self._next())
            except IndexError:  # another thread took it
                break
        return done

    def _next(self) -> tuple[Deferred[Any], list[Any]]:
        work, result = self._waiting.popleft()
        one = [work]
        del work
        _replace_with_result(one)
        return result, one

    def _deliver(self, done: list[tuple[Deferred[Any], list[Any]]]) -> None:
        for result, one in done:
            result.callback(one.pop())

    def _thread_ended(self) -> None:
        """Work that arrived while the thread was ending needs another one."""
        self._threads -= 1
        self._start_thread()


def _replace_with_result(one: list[Any]) -> None:
    """`one` is a list with a function. It gets the result instead, or the Failure, which a Deferred takes like a result.

    An error keeps the frames of its thread alive. They refer only to the list, which is empty once the result has been taken from it: if
    they referred to the function or to the Failure, a failed request would stay in memory until the garbage collector finds it.
    """
    try:
        one.append(one.pop()())
    except Exception:
        one.append(Failure())
    except BaseException as error:  # a panic in Rust: it would end the thread with all results, and no caller expects it
        one.append(Failure(RuntimeError(f"{type(error).__name__}: {error}")))
