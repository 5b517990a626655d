"""Long work in slices, with a clock that only the work itself turns forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from twisted.internet.defer import Deferred

from mailsvc.intake import Admitted, AsReceived, Content, Intake
from mailsvc.runtime.slices import Slices
from tests.test_intake import Caller, Rig, incoming


@attrs.define
class Day:
    """Turns of the reactor, each as long as the work done in it."""

    now: float = 0.0
    done: list[str] = attrs.field(factory=list)
    calls: list[Callable[[], None]] = attrs.field(factory=list)
    slices: Slices = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slices = Slices(self, 0.005, lambda: self.now)

    def callLater(self, delay: float, call: Callable[[], None]) -> None:
        assert not delay
        self.calls.append(call)

    async def work(self, name: str, pieces: int, seconds: float) -> None:
        for _ in range(pieces):
            await self.slices.pause()
            self.done.append(name)
            self.now += seconds

    def turns(self) -> Iterator[str]:
        """What was done in each turn, until nobody waits for another."""
        while self.calls:
            before, calls, self.calls = len(self.done), self.calls, []
            for call in calls:
                call()
            yield "".join(self.done[before:])


def test_work_continues_in_the_next_turn_after_its_slice() -> None:
    day = Day()
    over = Deferred.fromCoroutine(day.work("a", 12, 0.001))
    assert day.done == []  # whoever called has this turn
    assert list(day.turns()) == ["aaaaa", "aaaaa", "aa"]
    assert over.called


def test_all_work_shares_one_slice_per_turn() -> None:
    day = Day()
    for name in "abc":
        Deferred.fromCoroutine(day.work(name, 4, 0.003))
    assert list(day.turns()) == ["aa", "bb", "cc", "aa", "bb", "cc"]


def test_a_piece_longer_than_a_slice_has_its_own_turn() -> None:
    day = Day()
    for name in "ab":
        Deferred.fromCoroutine(day.work(name, 2, 0.02))
    assert list(day.turns()) == ["a", "b", "a", "b"]


def test_the_rest_of_a_slice_goes_to_others() -> None:
    day = Day()
    Deferred.fromCoroutine(day.work("a", 2, 0.001))
    Deferred.fromCoroutine(day.work("b", 9, 0.001))
    assert list(day.turns()) == ["aabbb", "bbbbb", "b"]


def test_a_failure_affects_only_its_own_work() -> None:
    day = Day()

    async def fail() -> None:
        await day.slices.pause()
        raise ValueError("mine")

    failed = Deferred.fromCoroutine(fail())
    Deferred.fromCoroutine(day.work("b", 1, 0.001))
    assert list(day.turns()) == ["b"]
    failed.addErrback(lambda failure: failure.trap(ValueError))


@attrs.define
class Slow(Rig):
    """Composing an email takes a millisecond here."""

    day: Day = attrs.field(factory=Day)

    def sliced(self) -> Intake:
        """An intake that asks for the time once for each email that it composes."""
        intake = self.intake()
        intake.pause, now = self.day.slices.pause, intake.clock

        def compose() -> float:
            self.day.now += 0.001
            self.day.done.append(".")
            return now()

        intake.clock = compose
        return intake


def test_a_batch_is_composed_in_slices() -> None:
    rig = Slow()
    intake = rig.sliced()
    admissions: list[object] = []
    emails = [incoming(to=f"zoe{n}@example.net") for n in range(100)]
    Deferred.fromCoroutine(intake.submit(Caller(), emails)).addBoth(admissions.append)  # type: ignore[arg-type]
    assert not rig.submissions and list(rig.day.turns()) == ["....."] * 20
    (admitted,) = admissions
    assert isinstance(admitted, Admitted) and len(admitted.results) == len(rig.taken) == 100


def test_received_messages_are_not_composed() -> None:
    for content, turns in ((Content(html="<p>Hello</p>"), ["."]), (AsReceived(b"", ("zoe@example.net",), "<1@example.test>"), [])):
        rig = Slow()
        intake = rig.sliced()
        email = attrs.evolve(incoming(), content=content)
        admitted = Deferred.fromCoroutine(intake.submit(Caller(), [email]))  # type: ignore[arg-type]
        assert list(rig.day.turns()) == turns
        assert admitted.called
