"""What is done together in one turn of the reactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from mailsvc.runtime.together import _SECONDS, Together


@attrs.define
class Turns:
    """A reactor that runs, in each turn, what was scheduled before it."""

    calls: list[Callable[[], None]] = attrs.field(factory=list)

    def callLater(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == 0
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@attrs.define
class Rig:
    """Each piece of work and each batch takes `costs` seconds. `batches` has the values of each."""

    costs: float = 0.0
    time: float = 0.0
    clock: Turns = attrs.field(factory=Turns)
    batches: list[list[int]] = attrs.field(factory=list)
    results: list[Any] = attrs.field(factory=list)
    together: Together[int, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.together = Together(self.clock, self.combine, 8, lambda: self.time)

    def combine(self, values: list[int]) -> list[int]:
        self.time += self.costs
        self.batches.append(values)
        return [10 * value for value in values]

    def ask(self, *values: int) -> None:
        for value in values:
            self.together(lambda value=value: self.work(value)).addBoth(self.results.append)

    def work(self, value: int) -> int:
        self.time += self.costs
        return value


def test_what_is_asked_for_in_one_turn_is_done_together_after_it() -> None:
    rig = Rig()
    rig.ask(*range(20))
    assert rig.batches == []
    rig.clock.turn()
    assert [len(batch) for batch in rig.batches] == [8, 8, 4]
    assert rig.results == [10 * value for value in range(20)]
    assert not rig.clock.calls


def test_a_turn_ends_when_its_time_is_over() -> None:
    rig = Rig(costs=_SECONDS / 4)
    rig.ask(*range(6))
    turns = 0
    while rig.clock.calls:
        before = rig.time
        rig.clock.turn()
        turns += 1
        assert rig.time - before <= 2 * _SECONDS
    assert turns > 1 and rig.results == [10 * value for value in range(6)]


def test_work_that_takes_long_is_done_alone_and_does_not_wait_forever() -> None:
    rig = Rig(costs=2 * _SECONDS)
    rig.ask(1, 2)
    rig.clock.turn()
    rig.clock.turn()
    assert rig.batches == [[1], [2]]


def test_work_that_raises_fails_alone() -> None:
    rig = Rig()
    rig.ask(1)
    rig.together(lambda: 1 // 0).addErrback(lambda failure: rig.results.append(failure.type))
    rig.ask(2)
    rig.clock.turn()
    assert rig.batches == [[1, 2]] and rig.results == [ZeroDivisionError, 10, 20]


def test_if_combining_raises_its_batch_fails_and_the_next_does_not() -> None:
    rig = Rig()
    combine: Callable[[list[int]], list[int]] = rig.together.combine
    rig.together.combine = lambda values: [1 // 0]
    rig.ask(1, 2)
    rig.clock.turn()
    rig.together.combine = combine
    rig.ask(3)
    rig.clock.turn()
    assert [each.type for each in rig.results[:2]] == [ZeroDivisionError] * 2 and rig.results[2:] == [30]


def test_a_result_may_ask_for_more() -> None:
    rig = Rig()
    rig.together(lambda: 1).addCallback(lambda _: rig.ask(2))
    rig.clock.turn()
    rig.clock.turn()
    assert rig.results == [20] and not rig.clock.calls


def test_results_may_come_later_and_others_are_done_meanwhile() -> None:
    rig, later = Rig(), [Deferred[list[int]](), Deferred[list[int]]()]
    waiting = list(later)
    rig.together.combine = lambda values: waiting.pop(0)
    rig.ask(1)
    rig.clock.turn()
    rig.ask(2, 3)
    rig.clock.turn()
    later[1].callback([20, 30])
    later[0].errback(OSError())
    assert rig.results[:2] == [20, 30] and rig.results[2].type is OSError
