"""Memory and disk budgets: limits are kept, everybody gets a share, and everything is returned."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mailsvc.runtime.budget import TURN_SECONDS, TURNS_PER_OWNER, Budgets, Hold, Pool, Turns


def test_one_owner_gets_half_and_others_still_find_room() -> None:
    pool = Pool(1000)
    assert pool.take("a", 500) and not pool.take("a", 1)
    assert pool.take("b", 250) and not pool.take("b", 1)
    assert pool.take("c", 125) and pool.refused == 2
    pool.give("a", 500)
    assert pool.take("c", 100)


def test_greedy_owners_get_equal_shares() -> None:
    pool = Pool(12_000)
    held = dict.fromkeys(range(5), 0)
    for _ in range(12_000):
        for owner in held:
            held[owner] += pool.take(owner, 1)
    assert set(held.values()) <= {1999, 2000, 2001} and pool.used <= 10_005


class Machine:
    """Holds of a small budget, in any order."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.budgets = Budgets.of(16_000, 16_000, self.clock)
        self.holds: list[Hold] = []
        self.turns: list[list[Any]] = []

    def do(self, what: str, owner: int, size: int) -> None:
        if what == "begin":
            self.holds.append(Hold(self.budgets.api if owner % 2 else self.budgets.inbound, owner))
        elif what == "wait":
            self.clock.advance(size / 100)
        elif self.holds:
            hold = self.holds[size % len(self.holds)]
            match what:
                case "arrived":
                    hold.arrived(size, 500)
                case "memory":
                    hold.memory(size)
                case "disk":
                    hold.disk(size)
                case "work":
                    self.turns.append([])
                    Deferred.fromCoroutine(hold.work(size)).addBoth(self.turns[-1].append)
                case "pause":
                    hold.pause(size)
                case "worked":
                    hold.worked()
                case "close":
                    hold.close()

    def check(self) -> None:
        for (_, resource), pool in self.budgets.pools():
            assert 0 <= pool.used <= (pool.limit if resource != "work" else max(pool.limit, 1000))


WHAT = st.sampled_from(["begin", "arrived", "arrived", "memory", "disk", "work", "work", "pause", "worked", "close", "wait"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(WHAT, st.integers(0, 3), st.integers(0, 1000)), max_size=80))
def test_the_limit_is_never_exceeded_and_everything_is_returned(steps: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    for step in steps:
        machine.do(*step)
        machine.check()
    for hold in machine.holds:
        hold.close()
    machine.clock.advance(TURN_SECONDS)
    assert machine.budgets.used == 0 and not machine.clock.getDelayedCalls()
    assert all(len(turn) == 1 for turn in machine.turns)
    assert not any(pool.owners for _, pool in machine.budgets.pools() if isinstance(pool, Pool))


def test_a_large_body_moves_from_memory_to_disk() -> None:
    budgets = Budgets.of(1 << 20, 1 << 20, Clock())
    hold = Hold(budgets.api, "account")
    assert hold.arrived(1000, 1000) and (budgets.api.memory.used, budgets.api.disk.used) == (1000, 0)
    assert hold.arrived(1001, 1000) and (budgets.api.memory.used, budgets.api.disk.used) == (0, 1001)
    hold.close()
    assert budgets.used == 0 and not hold.arrived(1, 1000) and not hold.memory(1)


class Waiters:
    """Who got a turn, in order."""

    def __init__(self, limit: int) -> None:
        self.clock, self.got = Clock(), list[str]()
        self.turns = Turns(limit, self.clock)

    def reserve(self, owner: str, size: int) -> None:
        Deferred.fromCoroutine(self.turns.take(owner, size)).addCallback(lambda ok: self.got.append(owner if ok else f"{owner} refused"))


def test_owners_take_turns_however_many_requests_one_of_them_sends() -> None:
    waiters = Waiters(100)
    for _ in range(4):
        waiters.reserve("a", 100)
    waiters.reserve("b", 100)
    for _ in range(5):
        waiters.turns.give(100)
    assert waiters.got == ["a", "a", "b", "a", "a"] and waiters.turns.used == 0


def test_one_request_above_the_limit_is_worked_on_alone() -> None:
    waiters = Waiters(100)
    waiters.reserve("a", 10)
    waiters.reserve("b", 1000)
    waiters.reserve("c", 10)  # does not overtake
    assert waiters.got == ["a"] and waiters.turns.waiting == 2
    waiters.turns.give(10)
    assert waiters.got == ["a", "b"]
    waiters.turns.give(1000)
    assert waiters.got == ["a", "b", "c"]


def test_waiting_is_bounded() -> None:
    waiters = Waiters(100)
    waiters.reserve("a", 100)
    waiters.reserve("b", 100)
    waiters.clock.advance(TURN_SECONDS)
    assert waiters.got == ["a", "b refused"] and waiters.turns.waiting == 0
    for _ in range(TURNS_PER_OWNER + 1):
        waiters.reserve("b", 1)
    assert waiters.got == ["a", "b refused", "b refused"] and waiters.turns.waiting == TURNS_PER_OWNER


def test_one_that_is_canceled_while_it_waits_takes_nothing() -> None:
    """A client that disconnects while its request waits."""
    waiters = Waiters(100)
    waiters.reserve("a", 90)
    leaving = Deferred.fromCoroutine(waiters.turns.take("b", 100))
    waiters.reserve("c", 10)
    leaving.cancel()
    leaving.addErrback(lambda failure: failure.trap(CancelledError))
    assert waiters.got == ["a", "c"]
    waiters.turns.give(90)
    waiters.turns.give(10)
    assert waiters.turns.used == waiters.turns.waiting == 0 and not waiters.clock.getDelayedCalls()


def test_a_turn_is_returned_while_waiting_for_another_server() -> None:
    budgets = Budgets.of(16_000, 16_000, Clock())
    hold, got = Hold(budgets.api, "a"), list[bool]()
    Deferred.fromCoroutine(hold.work(5000)).addCallback(got.append)
    other = Hold(budgets.api, "b")
    Deferred.fromCoroutine(other.work(5000)).addCallback(got.append)
    assert got == [True] and hold.pause(1000) and got == [True, True] and hold.in_memory == 1000
    hold.close()
    other.close()
    assert budgets.used == 0


def test_more_can_wait_for_a_turn_than_the_stack_is_deep() -> None:
    turns, done = Turns(10, Clock()), list[int]()

    async def work(number: int) -> None:
        assert await turns.take(number, 10)
        done.append(number)
        turns.give(10)

    first = Deferred.fromCoroutine(turns.take("first", 10))
    works = [Deferred.fromCoroutine(work(number)) for number in range(2 * sys.getrecursionlimit())]
    assert first.result is True
    turns.give(10)
    assert done == list(range(len(works))) and (turns.used, turns.waiting) == (0, 0)
