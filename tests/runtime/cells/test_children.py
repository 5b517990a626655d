"""The processes of cells, with a reactor that only pretends to start them, and with real ones."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mailsvc.runtime.cells.children import FAILURES, SOON, Children


class Started:
    """A process that does nothing."""

    def __init__(self, protocol: Any, arguments: list[str], environment: dict[str, str]) -> None:
        self.protocol, self.arguments, self.environment, self.signals, self.pid = protocol, arguments, environment, [], 4711

    def signalProcess(self, name: str) -> None:
        self.signals.append(name)

    def end(self, error: Exception | None = None) -> None:
        self.protocol.processEnded(Failure(error or ProcessDone(0)))


class Processes(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.started: list[Started] = []
        self.broken: OSError | None = None

    def spawnProcess(self, protocol: Any, program: str, arguments: list[str], environment: dict[str, str], childFDs: object) -> Started:
        if self.broken is not None:
            raise self.broken
        self.started.append(Started(protocol, arguments, environment))
        return self.started[-1]


def children(reactor: Any, **more: Any) -> Children:
    return Children(reactor, lambda cell: ["daemon", cell], lambda cell: {"CELL": cell}, 40.0, **more)


def stopped(stopping: Any) -> list[object]:
    ended: list[object] = []
    Deferred.fromCoroutine(stopping).addBoth(ended.append)
    return ended


def test_each_cell_gets_one_process_with_its_own_environment() -> None:
    reactor = Processes()
    made = children(reactor)
    for cell in ("red", "blue", "red"):
        made.start(cell)
    assert [each.arguments for each in reactor.started] == [["daemon", "red"], ["daemon", "blue"]]
    assert reactor.started[0].environment["CELL"] == "red"
    assert reactor.started[0].environment["PATH"] == os.environ["PATH"]
    assert "red" in made
    assert "green" not in made


def test_a_process_that_ends_is_started_again_after_growing_pauses() -> None:
    reactor, failed = Processes(), []
    children(reactor, on_failures=failed.append).start("red")
    for number in range(FAILURES):
        assert failed == []
        reactor.started[-1].end(ProcessTerminated(1))
        assert len(reactor.started) == number + 1
        reactor.advance(2.0**number * 1.2)
        assert len(reactor.started) == number + 2
    assert failed == ["red"]


def test_a_process_that_ran_well_for_a_while_has_not_failed() -> None:
    reactor, failed = Processes(), []
    children(reactor, on_failures=failed.append).start("red")
    for _ in range(2 * FAILURES):
        reactor.advance(SOON)
        reactor.started[-1].end(ProcessTerminated(1))
        reactor.advance(1.2)
    assert failed == []
    assert len(reactor.started) == 2 * FAILURES + 1


def test_a_machine_that_cannot_start_processes_tries_again() -> None:
    reactor = Processes()
    reactor.broken = OSError(11, "Resource temporarily unavailable")
    children(reactor).start("red")
    reactor.broken = None
    reactor.advance(1.2)
    assert len(reactor.started) == 1


def test_stopping_waits_for_the_end_and_kills_at_last() -> None:
    reactor = Processes()
    made = children(reactor)
    made.start("red")
    ended, again = stopped(made.stop("red")), stopped(made.stop("red"))
    assert reactor.started[0].signals == ["TERM", "TERM"]
    reactor.advance(39.9)
    assert (ended, again, reactor.started[0].signals) == ([], [], ["TERM", "TERM"])
    reactor.advance(0.1)
    assert "KILL" in reactor.started[0].signals
    reactor.started[0].end(ProcessTerminated(signal=9))
    assert (ended, again, len(reactor.started)) == ([None], [None], 1)
    assert "red" not in made
    assert reactor.getDelayedCalls() == []


def test_stopping_during_a_pause_starts_nothing_more() -> None:
    reactor = Processes()
    made = children(reactor)
    made.start("red")
    reactor.started[0].end(ProcessTerminated(1))
    assert stopped(made.stop("red")) == [None]
    assert reactor.getDelayedCalls() == []


def test_all_are_stopped_together() -> None:
    reactor = Processes()
    made = children(reactor)
    for cell in ("red", "blue"):
        made.start(cell)
    ended = stopped(made.stop_all())
    for each in reactor.started:
        assert each.signals == ["TERM"]
        each.end()
    assert ended == [None]
    assert stopped(made.stop("red")) == [None], "nothing to stop"


@pytest_twisted.ensureDeferred
async def test_real_processes_are_told_to_stop() -> None:
    from twisted.internet import reactor

    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    made = Children(reactor, lambda cell: waiting, lambda cell: {}, 10.0)
    made.start("red")
    await made.stop_all()
    assert "red" not in made
