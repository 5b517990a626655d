"""Dates follow the database's clock, timers a monotonic one, and a disagreement of the clocks is noticed."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from twisted.internet.base import DelayedCall
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc import clock as module
from mailsvc.clock import TimeOfDay, calm_for, held, measure, prepare, unix, utc

DAY = 86400.0
START = 1_800_000_000.0


@attrs.define
class Clocks:
    """This machine's clock, its monotonic one, and the database's; `pass_` lets time pass on all three."""

    machine: float = START
    steady: float = 1000.0
    database: float = START
    day: TimeOfDay = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.day = TimeOfDay(10.0, lambda: self.steady, lambda: self.machine)
        self.measure()

    def pass_(self, seconds: float) -> None:
        self.machine += seconds
        self.steady += seconds
        self.database += seconds

    def measure(self, took: float = 0.0) -> None:
        before = self.steady
        self.pass_(took)
        self.day.measured(before, self.database - took / 2, self.steady)


def test_a_test_clock_is_both_clocks_and_always_trusted() -> None:
    clock = Clock()
    clock.advance(DAY)
    assert unix(clock) == DAY and utc(clock) == datetime(1970, 1, 2, tzinfo=UTC)
    assert held(clock) is None and calm_for(clock) == float("inf")


@pytest.mark.parametrize("step", [6 * DAY, -120.0, 11.0])
def test_a_step_of_the_machine_moves_no_date_and_is_noticed_at_once(step: float) -> None:
    clocks = Clocks()
    clocks.pass_(5)
    clocks.machine += step
    assert clocks.day.seconds() == START + 5
    assert clocks.day.held is not None, "without another measurement"
    clocks.measure()
    assert clocks.day.seconds() == START + 5 and clocks.day.held is not None
    clocks.machine -= step
    clocks.measure()
    assert clocks.day.held is None and clocks.day.seconds() == START + 5


def test_a_step_of_the_database_moves_no_date_either() -> None:
    clocks = Clocks()
    clocks.database += 6 * DAY
    clocks.measure()
    assert clocks.day.held == "this machine's clock is 518400 s behind the database's"
    assert clocks.day.seconds() == START
    clocks.database -= 6 * DAY
    clocks.measure()
    assert clocks.day.held is None


def test_a_step_of_both_is_believed() -> None:
    """As after a suspension, or when Postgres is on this machine."""
    clocks = Clocks()
    clocks.machine += 3600
    clocks.database += 3600
    assert clocks.day.held is not None, "until the database has answered"
    clocks.measure()
    assert clocks.day.held is None and clocks.day.seconds() == START + 3600
    assert clocks.day.calm_for == 0, "times that the database wrote before cannot be compared with later ones"
    clocks.pass_(50)
    assert clocks.day.calm_for == 50


def test_the_database_decides_within_the_tolerance() -> None:
    clocks = Clocks()
    clocks.database += 7
    clocks.measure()
    assert clocks.day.held is None and clocks.day.seconds() == START + 7


def test_a_small_error_of_a_measurement_does_not_move_the_time() -> None:
    clocks = Clocks()
    clocks.measure(took=0.5)
    assert clocks.day.seconds() == clocks.database


def test_a_slow_answer_is_no_measurement() -> None:
    clocks = Clocks()
    clocks.database += 9
    clocks.measure(took=30)
    assert clocks.day.seconds() == START + 30


def test_a_process_that_starts_with_a_wrong_clock_is_held_from_the_beginning() -> None:
    clocks = Clocks(machine=START + 6 * DAY)
    assert clocks.day.held is not None
    assert clocks.day.seconds() == START


def test_holding_is_logged_once() -> None:
    clocks = Clocks()
    with capturedLogs() as logged:
        clocks.machine += 60
        for _ in range(3):
            clocks.measure()
        clocks.machine -= 60
        clocks.measure()
    assert [event["log_level"].name for event in logged] == ["error", "info"]


def test_measuring_asks_the_database_once() -> None:
    clock: Any = Clock()
    clock.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: START)
    reads = []

    async def read() -> float:
        reads.append(1)
        return START + 500.0

    Deferred.fromCoroutine(measure(clock, read))
    assert reads == [1] and unix(clock) == START + 500 and held(clock) is not None


class Reactor:
    """As much of a reactor as has timers."""

    def __init__(self, machine: Any) -> None:
        self.seconds = machine
        self.calls: list[DelayedCall] = []

    def getDelayedCalls(self) -> list[DelayedCall]:
        return self.calls

    def later(self, seconds: float) -> None:
        nothing = lambda *_: None  # noqa: E731
        heapq.heappush(self.calls, DelayedCall(self.seconds() + seconds, nothing, (), {}, nothing, nothing, self.seconds))


def test_timers_are_monotonic_those_already_set_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steady = [START], [50.0]
    monkeypatch.setattr(module, "monotonic", lambda: steady[0])
    reactor: Any = Reactor(lambda: machine[0])
    reactor.later(30)
    reactor.later(10)
    prepare(reactor)
    reactor.later(20)
    machine[0] -= 120
    steady[0] += 5
    assert sorted(call.getTime() - reactor.seconds() for call in reactor.calls) == [5, 15, 25]
    assert abs(reactor.time_of_day.seconds() - module.time.time()) < 5, "until Postgres has answered, dates are the machine's"
    before = reactor.time_of_day
    assert prepare(reactor) is before
