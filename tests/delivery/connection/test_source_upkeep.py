"""Block lists: a listed source rests, and continues once it is off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import pytest_twisted
from twisted.logger import LogLevel, globalLogPublisher

from mailsvc.delivery.connection.source_state import SourceState
from mailsvc.delivery.connection.source_upkeep import SourceUpkeep
from mailsvc.delivery.connection.sources import parse
from mailsvc.delivery.shaping import NO_RULES
from mailsvc.net import block_lists
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import SourceTable
from tests.delivery.fakes import clock_at
from tests.store.fixtures import NOW, REGION

ADDRESS, PRIVATE = "198.51.99.7", "10.0.0.7"
LISTED, CLEAN = "7.99.51.198.list.example", "7.99.51.198.clean.example"


class Names:
    """DNS: the answer for each name. Names without one do not exist."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []

    async def addresses(self, name: str) -> Any:
        self.asked.append(name)
        answer = self.answers.get(name)
        return NxDomain(name) if answer is None else Records(name, (answer,)) if isinstance(answer, str) else answer


class Holds:
    waiting_for_source: tuple[str, ...] = ()


class Place:
    def __init__(self, pool: Pool, lists: Sequence[str] = ("list.example", "clean.example")) -> None:
        self.clock, self.names = clock_at(NOW.timestamp()), Names()
        self.table = SourceTable(pool, REGION)
        own = parse([f"{ADDRESS} out.example", f"{PRIVATE} private.example"])
        self.state = SourceState(self.clock, self.table, own, NO_RULES)
        self.upkeep: Any = SourceUpkeep(self.clock, self.state, self.table, Holds(), self.names, lists)  # type: ignore[arg-type]

    async def check(self, after: float = 0.0) -> dict[str, list[str]]:
        self.clock.advance(after)
        self.names.asked.clear()
        await self.upkeep.refresh()
        await self.upkeep.check_lists()
        return {address: list(lists) for address, lists in self.state.listed.items()}


@pytest.fixture
def logged() -> Any:
    events: list[Any] = []
    observe = lambda event: events.append(event) if event["log_level"] >= LogLevel.warn else None  # noqa: E731
    globalLogPublisher.addObserver(observe)
    yield events
    globalLogPublisher.removeObserver(observe)


@pytest_twisted.ensureDeferred
async def test_a_listed_source_sends_nothing_until_it_is_removed_and_an_alert_says_what_to_do(pool: Pool, logged: list[Any]) -> None:
    place = Place(pool)
    assert await place.check() == {} and place.names.asked == [LISTED, CLEAN], "private addresses are not looked up"
    assert place.state.simple
    place.names.answers[LISTED] = "127.0.0.2"
    assert await place.check(3600.0) == {}, "asked daily"
    assert await place.check(86400.0) == {ADDRESS: ["list.example"]}
    assert not place.state.simple
    [event] = logged
    assert event["log_level"] == LogLevel.error and event["address"] == ADDRESS and "request removal" in event["log_format"]
    del place.names.answers[LISTED]
    assert await place.check(60.0) == {ADDRESS: ["list.example"]}
    assert await place.check(3600.0) == {}, "asked hourly while it is listed"


@pytest_twisted.ensureDeferred
async def test_a_list_that_does_not_answer_changes_nothing_and_is_asked_again(pool: Pool) -> None:
    place = Place(pool)
    place.names.answers[LISTED] = "127.0.0.2"
    assert await place.check() == {ADDRESS: ["list.example"]}
    for silence in (Temporary("timeout"), "127.255.255.254"):
        place.names.answers[LISTED] = silence
        assert await place.check(3600.0) == {ADDRESS: ["list.example"]}
    del place.names.answers[LISTED]
    assert await place.check(600.0) == {}


@pytest_twisted.ensureDeferred
async def test_a_list_that_lists_everything_is_ignored(pool: Pool, logged: list[Any]) -> None:
    place = Place(pool)
    place.names.answers |= {LISTED: "127.0.0.2", "1.0.0.127.list.example": "127.0.0.2"}
    assert await place.check() == {}
    assert [event["zone"] for event in logged] == ["list.example"]


@pytest_twisted.ensureDeferred
async def test_two_processes_with_a_source_ask_once(pool: Pool) -> None:
    first, second = Place(pool), Place(pool)
    first.names.answers[LISTED] = "127.0.0.2"
    assert await first.check() == {ADDRESS: ["list.example"]}
    assert await second.check() == {ADDRESS: ["list.example"]} and not second.names.asked


@pytest_twisted.ensureDeferred
async def test_without_lists_nothing_is_asked_and_nothing_rests(pool: Pool) -> None:
    place = Place(pool)
    place.names.answers[LISTED] = "127.0.0.2"
    assert await place.check() == {ADDRESS: ["list.example"]}
    closed = Place(pool, ())
    assert await closed.check(3600.0) == {} and not closed.names.asked
    assert not (await Place(pool, ()).check()) and not closed.names.asked


@pytest_twisted.ensureDeferred
async def test_which_lists_have_a_name_and_which_answered() -> None:
    names: Any = Names()
    names.answers |= {"x.a": "127.0.0.4", "x.b": "127.255.255.254", "x.c": Temporary("timeout"), "x.d": "192.0.2.1"}
    assert await block_lists.look_up(names, "x", ["a", "b", "c", "d", "e"]) == (["a"], ["a", "e"])
