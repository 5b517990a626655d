"""Work that goes to threads in handfuls, with threads that run when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from mailsvc.offload import Offload


@attrs.define
class Reactor:
    """Keeps what is to run, in a thread or back in the reactor."""

    threads: list[Callable[[], None]] = attrs.field(factory=list)
    calls: list[tuple[Any, ...]] = attrs.field(factory=list)

    def getThreadPool(self) -> Reactor:
        return self

    def callInThread(self, work: Callable[[], None]) -> None:
        self.threads.append(work)

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:
        self.calls.append((call, *args))

    def run(self) -> int:
        """Until nothing is left; how often a thread came back with results."""
        times = 0
        while self.threads or self.calls:
            while self.threads:
                self.threads.pop(0)()
            calls, self.calls = self.calls, []
            for call, *args in calls:
                times += bool(args)
                call(*args)
        return times


def test_what_waits_together_comes_back_together() -> None:
    reactor = Reactor()
    offload, results = Offload(reactor), []
    for number in range(10):
        offload(lambda number=number: number * 2).addCallback(results.append)
    assert len(reactor.threads) == 2
    assert reactor.run() == 2
    assert sorted(results) == [number * 2 for number in range(10)]


def test_an_error_belongs_to_the_work_that_raised_it() -> None:
    reactor = Reactor()
    offload, failures, results = Offload(reactor), [], []
    offload(lambda: 1 // 0).addErrback(failures.append)
    offload(lambda: 1).addCallback(results.append)
    reactor.run()
    assert failures[0].check(ZeroDivisionError) and results == [1]


def test_what_comes_while_the_last_thread_leaves_gets_a_new_one() -> None:
    reactor = Reactor()
    offload, results = Offload(reactor, most=1), []
    offload(lambda: 1).addCallback(results.append)
    reactor.threads.pop()()  # it has left; the reactor does not know yet
    offload(lambda: 2).addCallback(results.append)
    assert reactor.threads == []
    reactor.run()
    assert results == [1, 2]
