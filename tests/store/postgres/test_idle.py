"""The first turn of the reactor in which nothing else happens."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mailsvc.store.postgres.idle import Idle


@attrs.define
class Turns:
    """A reactor whose turns take as long as a test says, and run what was scheduled before them."""

    time: float = 0.0
    calls: list[tuple[Callable[..., None], tuple[object, ...]]] = attrs.field(factory=list)
    idled: int = 0
    idle: Idle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.idle = Idle(self, lambda: self.time)

    def callLater(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        assert seconds == 0
        self.calls.append((call, args))

    def turn(self, seconds: float = 0.00002) -> None:
        calls, self.calls = self.calls, []
        for call, args in calls:
            call(*args)
        self.time += seconds

    def count(self) -> None:
        self.idled += 1


def test_it_is_called_once_after_a_turn_that_did_nothing() -> None:
    turns = Turns()
    turns.idle.watch(turns.count)
    turns.turn()
    assert turns.idled == 0, "the turn that it was scheduled in had something to do"
    turns.turn()
    turns.turn()
    assert (turns.idled, turns.calls) == (1, [])


def test_turns_that_take_long_are_not_idle() -> None:
    turns = Turns()
    turns.idle.watch(turns.count)
    for _ in range(5):
        turns.turn(0.001)
    assert turns.idled == 0
    turns.turn()
    turns.turn()
    assert turns.idled == 1


def test_a_watch_that_was_stopped_ends() -> None:
    turns = Turns()
    turns.idle.watch(turns.count)
    turns.idle.stop()
    turns.turn()
    assert (turns.idled, turns.calls) == (0, [])


def test_there_is_one_watch_however_often_it_begins() -> None:
    turns = Turns()
    for _ in range(3):
        turns.idle.watch(turns.count)
        turns.idle.stop()
    turns.idle.watch(turns.count)
    assert len(turns.calls) == 1
    turns.turn()
    turns.turn()
    assert turns.idled == 1
