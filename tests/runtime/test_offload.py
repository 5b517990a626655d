"""Batched work in threads that run when the test says so, and separate pools in real threads."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from typing import Any
from weakref import ref

import attrs

from mailsvc.runtime.offload import BODIES, Offload, Threads


@attrs.define
class Reactor:
    """Keeps what should run in a thread or in the reactor."""

    threads: list[Callable[[], None]] = attrs.field(factory=list)
    calls: list[tuple[Any, ...]] = attrs.field(factory=list)
    full: bool = False  # the system allows no more threads

    def getThreadPool(self) -> Reactor:
        return self

    def callInThread(self, work: Callable[[], None]) -> None:
        if self.full:
            raise RuntimeError("can't start new thread")
        self.threads.append(work)

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:
        self.calls.append((call, *args))

    def run(self) -> int:
        """Run everything. Returns how often a thread returned results."""
        times = 0
        while self.threads or self.calls:
            while self.threads:
                self.threads.pop(0)()
            calls, self.calls = self.calls, []
            for call, *args in calls:
                times += bool(args)
                call(*args)
        return times


def test_results_of_waiting_work_are_returned_together() -> None:
    reactor = Reactor()
    offload, results = Offload(reactor), []
    for number in range(10):
        offload(lambda number=number: number * 2).addCallback(results.append)
    assert len(reactor.threads) == 2
    assert reactor.run() == 2
    assert sorted(results) == [number * 2 for number in range(10)]


def test_an_error_fails_only_the_work_that_raised_it() -> None:
    reactor = Reactor()
    offload, failures, results = Offload(reactor), [], []

    class Panic(BaseException):
        """Libraries in Rust raise such."""

    def panic() -> None:
        raise Panic("index out of bounds")

    offload(lambda: 1 // 0).addErrback(failures.append)
    offload(panic).addErrback(failures.append)
    offload(lambda: 1).addCallback(results.append)
    reactor.run()
    assert failures[0].check(ZeroDivisionError) and results == [1]
    assert failures[1].check(RuntimeError) and str(failures[1].value) == "Panic: index out of bounds"


class Body:
    """Something that a weak reference can refer to."""


def _failing(seen: list[ref[Body]]) -> Callable[[], None]:
    body = Body()
    seen.append(ref(body))

    def work() -> None:
        raise ValueError(body)

    return work


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_what_failed_in_a_batch_is_freed_without_the_garbage_collector() -> None:
    reactor, seen = Reactor(), list[ref[Body]]()
    offload = Offload(reactor)
    with _without_collector():
        offload(_failing(seen)).addErrback(lambda _: None)
        reactor.run()
        assert seen[0]() is None


def test_what_failed_in_a_thread_is_freed_without_the_garbage_collector() -> None:
    reactor, seen = RealThreads(), list[ref[Body]]()
    threads = Threads.start(reactor)
    with _without_collector():
        try:
            threads.body(_failing(seen)).addErrback(lambda _: None)  # type: ignore[attr-defined]
            reactor.turn()
        finally:
            for stop in reactor.at_shutdown:
                stop()
        assert seen[0]() is None


def test_work_that_arrives_while_the_last_thread_ends_gets_a_new_thread() -> None:
    reactor = Reactor()
    offload, results = Offload(reactor, max_threads=1), []
    offload(lambda: 1).addCallback(results.append)
    reactor.threads.pop()()  # it has ended, but the reactor does not know yet
    offload(lambda: 2).addCallback(results.append)
    assert reactor.threads == []
    reactor.run()
    assert results == [1, 2]


def test_a_thread_that_cannot_be_started_fails_the_work_and_later_work_gets_one() -> None:
    reactor = Reactor()
    offload, failures, results = Offload(reactor, max_threads=1), [], []
    reactor.full = True
    offload(lambda: 1).addCallbacks(results.append, failures.append)
    assert failures[0].check(RuntimeError)
    reactor.full = False
    offload(lambda: 2).addCallback(results.append)
    reactor.run()
    assert results == [2]


class RealThreads:
    """What thread pools need of a reactor: `turn` runs one call from a thread."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.at_shutdown: list[Callable[[], None]] = []

    def callWhenRunning(self, call: Callable[[], None]) -> None:
        call()

    def addSystemEventTrigger(self, _phase: str, _event: str, call: Callable[[], None]) -> None:
        self.at_shutdown.append(call)

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:
        self.calls.put((call, *args))

    def turn(self) -> None:
        call, *args = self.calls.get(timeout=10)
        call(*args)


def test_large_bodies_do_not_delay_passwords() -> None:
    reactor, go_on = RealThreads(), Event()
    threads = Threads.start(reactor)
    try:
        bodies: list[Any] = []
        for _ in range(2 * BODIES):
            threads.body(lambda: go_on.wait(10)).addCallback(bodies.append)  # type: ignore[attr-defined]
        results: list[Any] = []
        threads.password(lambda: "a hash").addCallback(results.append)  # type: ignore[attr-defined]
        while not results:
            reactor.turn()
        assert results == ["a hash"] and bodies == []
        go_on.set()
        while len(bodies) < 2 * BODIES:
            reactor.turn()
        assert all(bodies)
    finally:
        go_on.set()
        for stop in reactor.at_shutdown:
            stop()
