"""Shared commits: few writes, each caller gets its own result, and callers do not affect each other."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mailsvc.store.postgres.errors import Contention, DataRejected, StoreError, Unavailable
from mailsvc.store.postgres.shared_commits import PATIENCE, SharedCommits


@attrs.define(eq=False)
class Table:
    """Each write waits until the test ends it."""

    clock: Clock = attrs.field(factory=Clock)
    under_way: list[tuple[list[int], Deferred[None]]] = attrs.field(factory=list)
    written: list[list[int]] = attrs.field(factory=list)
    poisoned: frozenset[int] = frozenset()
    most: int = 0

    async def write(self, items: list[int]) -> list[int]:
        entry: tuple[list[int], Deferred[None]] = (list(items), Deferred())
        self.under_way.append(entry)
        self.most = max(self.most, len(self.under_way))
        try:
            await entry[1]
        finally:
            self.under_way.remove(entry)
        if self.poisoned & set(items):
            raise DataRejected("22021")
        self.written.append(items)
        return [item * 10 for item in items]

    def end(self, error: Exception | None = None) -> None:
        answer = self.under_way[0][1]
        if error is None:
            answer.callback(None)
        else:
            answer.errback(error)

    def batch(self, **settings: Any) -> SharedCommits[int, int]:
        return SharedCommits(self.write, self.clock, **settings)


def submit(batch: SharedCommits[int, int], *items: int, weight: int = 1) -> list[Deferred[int]]:
    return [batch.submit(item, weight) for item in items]


def results(waiting: list[Deferred[int]]) -> list[object]:
    """The result of each, exceptions as their class, None while waiting."""
    found: list[object] = [None] * len(waiting)
    for index, one in enumerate(waiting):

        def note(result: object, index: int = index) -> None:
            found[index] = type(result.value) if isinstance(result, Failure) else result

        one.addBoth(note)
    return found


def test_concurrent_items_share_a_write() -> None:
    table = Table()
    batch = table.batch(prompt=False)
    waiting = submit(batch, 1, 2)
    table.clock.advance(0.001)
    waiting += submit(batch, 3)
    assert table.under_way == []
    table.clock.advance(0.001)
    assert [items for items, _ in table.under_way] == [[1, 2, 3]]
    table.end()
    assert results(waiting) == [10, 20, 30]
    assert (batch.written, batch.items) == (1, 3)


def test_more_writes_can_fail_at_once_than_the_stack_is_deep() -> None:
    """As while too many wait for a connection to the database."""
    table = Table()
    batch = table.batch(max_items=1, writes=1)
    waiting = submit(batch, *range(sys.getrecursionlimit() // 2))
    [(_, answer)] = table.under_way

    async def fail(items: list[int]) -> list[int]:
        raise Unavailable("Too many wait.")

    batch.write = fail
    answer.callback(None)
    assert results(waiting) == [0, *[Unavailable] * (len(waiting) - 1)]
    batch.write = table.write
    submit(batch, 1)
    table.clock.advance(0)
    assert len(table.under_way) == 1


def test_nothing_lingers_once_all_expected_items_are_there() -> None:
    table = Table()
    batch = table.batch(prompt=False)
    for item in (1, 2, 3):
        assert table.under_way == []
        batch.submit(item, expected=3)
    assert [items for items, _ in table.under_way] == [[1, 2, 3]]
    batch.submit(4, expected=2)
    batch.submit(5)  # its caller does not know how many are coming
    assert len(table.under_way) == 1
    table.clock.advance(0.002)
    assert [items for items, _ in table.under_way] == [[1, 2, 3], [4, 5]]


def test_single_items_do_not_linger() -> None:
    table = Table()
    batch = table.batch()
    for item in range(3):
        submit(batch, item)
        assert table.under_way == []  # others of this turn may come
        table.clock.advance(0)
        assert [items for items, _ in table.under_way] == [[item]]
        table.end()


def test_after_a_shared_write_the_next_one_lingers() -> None:
    table = Table()
    batch = table.batch()
    submit(batch, 1, 2)
    table.clock.advance(0)
    submit(batch, 3)
    table.clock.advance(0)
    assert [items for items, _ in table.under_way] == [[1, 2]]
    table.end()
    assert [items for items, _ in table.under_way] == [[3]]  # it waited while that one was under way
    submit(batch, 4)
    table.clock.advance(0)
    assert [items for items, _ in table.under_way] == [[3]]  # nor does it start beside another at once
    table.clock.advance(0.002)
    assert [items for items, _ in table.under_way] == [[3], [4]]


def test_a_full_write_does_not_linger() -> None:
    table = Table()
    submit(table.batch(max_items=2), 1, 2, 3)
    assert [items for items, _ in table.under_way] == [[1, 2]]


def lingered(table: Table, batch: SharedCommits[int, int], late: float) -> float:
    """How long the next item lingers, in milliseconds, when the reactor notices the end of that `late` seconds afterwards."""
    submit(batch, 1)
    began = table.clock.seconds()
    [timer] = table.clock.getDelayedCalls()
    waits = timer.getTime() - began
    table.clock.advance(waits + late)
    table.end()
    return round(1000 * waits, 1)


def test_items_linger_longer_while_the_reactor_is_late() -> None:
    table = Table()
    batch = table.batch(prompt=False)
    assert [lingered(table, batch, 0.0) for _ in range(3)] == [2, 2, 2]
    growing = [lingered(table, batch, 0.001) for _ in range(20)]
    assert growing == sorted(growing)
    assert 4 < growing[-1] < 5, "three times as much as it is late"
    assert [lingered(table, batch, 0.1) for _ in range(9)][1:] == [6] * 8, "at most three times as long as otherwise"
    recovering = [lingered(table, batch, 0.0) for _ in range(80)]
    assert recovering == sorted(recovering, reverse=True)
    assert recovering[-1] == 2


def test_items_that_waited_for_a_write_are_written_at_once() -> None:
    table = Table()
    batch = table.batch(writes=2)
    submit(batch, 1)
    table.clock.advance(0)
    submit(batch, 2)
    table.clock.advance(0.002)
    submit(batch, 3, 4)
    table.clock.advance(1)
    assert [items for items, _ in table.under_way] == [[1], [2]]
    table.end()
    assert [items for items, _ in table.under_way] == [[2], [3, 4]]


def test_a_heavy_item_is_written_alone() -> None:
    table = Table()
    batch = table.batch(max_weight=10, writes=9)
    waiting = submit(batch, 1, weight=4) + submit(batch, 2, weight=50) + submit(batch, 3, 4, weight=5)
    table.clock.advance(0.002)
    while table.under_way:
        table.end()
    assert table.written == [[1], [2], [3, 4]]
    assert results(waiting) == [10, 20, 30, 40]


def test_a_bad_item_fails_alone() -> None:
    table = Table(poisoned=frozenset({2}))
    waiting = submit(table.batch(), 1, 2, 3)
    table.clock.advance(0.002)
    while table.under_way:
        table.end()
    assert results(waiting) == [10, DataRejected, 30]
    assert table.written == [[1], [3]]


@pytest.mark.parametrize("unknown", [True, False])
def test_nothing_is_written_twice_when_its_commit_is_unknown(unknown: bool) -> None:
    table = Table()
    batch = table.batch()
    waiting = submit(batch, 1, 2)
    table.clock.advance(0.002)
    table.end(Unavailable("lost", unknown))
    assert results(waiting) == [Unavailable, Unavailable]
    assert table.under_way == []
    assert batch.written == 1


def test_retrying_items_separately_ends_when_the_database_is_lost() -> None:
    table = Table()
    waiting = submit(table.batch(), 1, 2, 3)
    table.clock.advance(0.002)
    table.end(DataRejected("22021"))
    table.end()
    while table.under_way:
        table.end(Unavailable("lost", True))
    assert results(waiting) == [10, Unavailable, Unavailable]


@pytest.mark.parametrize("error", [Contention("55P03", "a lock"), DataRejected("22021")])
def test_items_do_not_wait_for_a_lock_one_after_the_other(error: StoreError) -> None:
    table = Table()
    waiting = submit(table.batch(max_items=4), 1, 2, 3, 4)
    table.end(error)
    for _ in range(2):
        table.clock.advance(PATIENCE)
        table.end(Contention("55P03", "a lock"))
    assert len(table.under_way) == isinstance(error, DataRejected)  # a bad item is still found, however long it takes
    assert results(waiting)[2:] == ([None, None] if table.under_way else [Contention, Contention])


@pytest.mark.parametrize("error", [Contention("55P03", "a lock"), DataRejected("22021"), None])
def test_items_do_not_wait_for_one_failing_write_after_the_other(error: StoreError | None) -> None:
    table = Table()
    batch = table.batch(max_items=1, writes=1, longest_wait=20.0)
    waiting = submit(batch, 1, 2, 3)
    table.clock.advance(20)
    waiting += submit(batch, 4)
    table.clock.advance(1)
    table.end(error)
    late = isinstance(error, Contention)
    assert [items for items, _ in table.under_way] == [[4 if late else 2]] and batch.waiting == (0 if late else 2)
    assert results(waiting)[1:] == ([Unavailable, Unavailable, None] if late else [None, None, None])


def test_cancelling_a_caller_does_not_affect_the_others() -> None:
    table = Table()
    batch = table.batch()
    early, late, stays = submit(batch, 1, 2, 3)
    early.cancel()
    table.clock.advance(0.002)
    late.cancel()
    table.end()
    assert results([early, late, stays]) == [CancelledError, CancelledError, 30]
    assert table.written == [[1, 2, 3]]


def test_waiting_items_are_bounded_in_number_and_weight() -> None:
    table = Table()
    batch = table.batch(queue=3, queue_weight=100)
    waiting = submit(batch, 1, 2, weight=40) + submit(batch, 3, weight=30) + submit(batch, 4, 5)
    assert results(waiting) == [None, None, Unavailable, None, Unavailable]
    assert batch.waiting == 3
    table.clock.advance(0.002)
    assert batch.waiting == 0
    assert results(submit(batch, 7, weight=1) + submit(batch, 8, weight=99)) == [None, None]
    [whole] = submit(table.batch(queue_weight=100), 6, weight=1000)
    table.clock.advance(0.002)
    table.end()
    table.end()
    assert results([whole]) == [60]


def test_a_write_that_returns_too_few_results_fails() -> None:
    async def write(items: list[int]) -> list[int]:
        return []

    clock = Clock()
    waiting = submit(SharedCommits(write, clock), 1)
    clock.advance(1)
    assert results(waiting) == [AssertionError]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 30)),
        st.tuples(st.just("advance"), st.sampled_from([0.0005, 0.002])),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 60)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(ACTIONS, st.frozensets(st.integers(0, 60)), st.integers(1, 3), st.integers(1, 8), st.sampled_from([10, 1000]))
def test_each_caller_gets_its_own_result_whatever_happens(
    actions: list[tuple[str, Any]], poisoned: frozenset[int], writes: int, max_items: int, max_weight: int
) -> None:
    table = Table(poisoned=poisoned)
    batch = table.batch(writes=writes, max_items=max_items, max_weight=max_weight)
    waiting: list[Deferred[int]] = []
    left = set()
    for action, argument in actions:
        if action == "submit":
            waiting += submit(batch, len(waiting), weight=argument)
        elif action == "advance":
            table.clock.advance(argument)
        elif action == "end" and table.under_way:
            table.end()
        elif action == "leave" and argument < len(waiting) and not waiting[argument].called:
            left.add(argument)
            waiting[argument].cancel()
        assert all(len(items) <= max_items for items, _ in table.under_way)
    while batch.waiting or table.under_way:
        table.clock.advance(0.002)
        if table.under_way:
            table.end()
    expected = [CancelledError if n in left else DataRejected if n in poisoned else n * 10 for n in range(len(waiting))]
    assert results(waiting) == expected
    assert Counter(item for items in table.written for item in items) == Counter(set(range(len(waiting))) - poisoned)
    assert table.most <= writes
    assert table.clock.getDelayedCalls() == [] or table.clock.advance(1) is None


class Reactor:
    """Says that the reactor is idle when a test does. `watched` is called then."""

    watched: Any = None

    def watch(self, function: Any) -> None:
        self.watched = function

    def stop(self) -> None:
        self.watched = None


def idling(table: Table, **settings: Any) -> tuple[SharedCommits[int, int], Reactor]:
    """After a first write of several items, so that single ones linger as well."""
    reactor: Any = Reactor()
    batch = table.batch(idle=reactor, **settings)
    submit(batch, -1, -2)
    table.clock.advance(1)
    table.end()
    return batch, reactor


def test_items_do_not_linger_when_the_reactor_has_nothing_else_to_do() -> None:
    table = Table()
    batch, reactor = idling(table)
    waiting = submit(batch, 1, 2)
    reactor.watched()
    assert ([items for items, _ in table.under_way], reactor.watched) == ([[1, 2]], None)
    table.end()
    assert (results(waiting), table.clock.getDelayedCalls()) == ([10, 20], [])


def test_items_wait_for_a_running_write_even_if_the_reactor_has_nothing_else_to_do() -> None:
    table = Table()
    batch, reactor = idling(table)
    submit(batch, 1)
    table.clock.advance(1)
    submit(batch, 2)
    assert ([items for items, _ in table.under_way], reactor.watched) == ([[1]], None)
    table.end()
    assert [items for items, _ in table.under_way] == [[2]]


def test_the_watch_ends_when_items_have_lingered() -> None:
    table = Table()
    batch, reactor = idling(table)
    submit(batch, 1)
    assert reactor.watched is not None
    table.clock.advance(1)
    assert ([items for items, _ in table.under_way], reactor.watched) == ([[1]], None)
