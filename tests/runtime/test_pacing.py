"""Accepting waits while delivery is behind: for a bounded time, and together."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.runtime.pacing import CALM, FEW, IDLE_TICK, LATE, ROUND, ROUNDS, TICK, TOGETHER, Load, Pace


@attrs.define
class Waiters:
    """Submissions that wait, and which of them may go on."""

    pace: Pace
    gone: list[str] = attrs.field(factory=list)

    def add(self, name: str, emails: int = 1) -> Deferred[None]:
        turn = self.pace.wait(emails)
        assert turn is not None
        return turn.addCallback(lambda _: self.gone.append(name))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waiters(clock: Clock) -> Waiters:
    pace = Pace(clock)
    pace.set(True)
    return Waiters(pace)


def test_nobody_waits_while_delivery_keeps_up(clock: Clock) -> None:
    assert Pace(clock).wait(1) is None


def test_those_who_wait_go_on_together(clock: Clock, waiters: Waiters) -> None:
    waiters.add("a")
    clock.advance(ROUND * 0.9)
    waiters.add("b")
    assert waiters.gone == []
    clock.advance(ROUND * 0.1)
    assert waiters.gone == ["a", "b"]


def test_many_emails_wait_more_rounds(clock: Clock, waiters: Waiters) -> None:
    waiters.add("batch", 2 * TOGETHER)
    waiters.add("largest", 100 * TOGETHER)
    clock.pump([ROUND] * 2)
    assert waiters.gone == []
    clock.advance(ROUND)
    assert waiters.gone == ["batch"]
    clock.pump([ROUND] * (ROUNDS - 3))
    assert waiters.gone == ["batch", "largest"] and clock.getDelayedCalls() == []


def test_all_go_on_when_delivery_has_caught_up(clock: Clock, waiters: Waiters) -> None:
    waiters.add("a")
    waiters.add("batch", 100)
    waiters.pace.set(False)
    assert waiters.gone == ["a", "batch"] and waiters.pace.wait(1) is None


def test_a_caller_that_was_cancelled_does_not_keep_others_waiting(clock: Clock, waiters: Waiters) -> None:
    waiters.add("a").addErrback(lambda _: None).cancel()
    waiters.add("b")
    clock.advance(ROUND)
    assert waiters.gone == ["b"]


@attrs.define
class Machine:
    """A reactor that is late by `late` seconds, and `emails` in memory."""

    clock: Clock
    emails: int = 0
    late: float = 0.0
    results: list[bool] = attrs.field(factory=list)
    load: Load = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.load = Load(self.clock, self.clock.seconds, lambda: self.emails, self.results.append)
        self.load.start()

    def measure(self, times: int = 1) -> None:
        for _ in range(times):
            [call] = self.clock.getDelayedCalls()
            self.clock.advance(call.getTime() - self.clock.seconds() + self.late)


@pytest.fixture
def machine(clock: Clock) -> Machine:
    return Machine(clock)


def test_much_mail_alone_is_not_behind(machine: Machine) -> None:
    """Its destinations may be slow."""
    machine.emails = 10 * FEW
    machine.measure(20)
    assert machine.results == []


def test_a_busy_processor_alone_is_not_behind(machine: Machine) -> None:
    machine.late = 10 * LATE
    machine.measure(20)
    assert machine.results == []


def test_much_mail_on_a_busy_processor_is_behind_until_either_ends(machine: Machine) -> None:
    machine.emails, machine.late = FEW + 1, 2 * LATE
    machine.measure()
    assert machine.results == [True]
    machine.emails = FEW
    machine.measure()
    assert machine.results == [True, False]
    machine.emails = FEW + 1
    machine.measure()
    machine.late = 0.0
    machine.measure(CALM - 1)
    assert machine.results == [True, False, True]
    machine.measure()
    assert machine.results == [True, False, True, False]


def test_it_is_measured_rarely_while_there_is_little_mail(machine: Machine) -> None:
    began = machine.clock.seconds()
    machine.measure(2)
    assert machine.clock.seconds() - began == pytest.approx(2 * IDLE_TICK)
    machine.emails = FEW + 1
    machine.measure()  # was set before
    began = machine.clock.seconds()
    machine.measure(2)
    assert machine.clock.seconds() - began == pytest.approx(2 * TICK)
