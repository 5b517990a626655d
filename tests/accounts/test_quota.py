"""Leasing parts of a quota: over a count in memory that many processes share, and over the real one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.accounts.quota import BLOCK, IDLE, PATIENCE, Quotas, Taken, Used
from mailsvc.settings.plans import PERIODS, Exhausted, Plan
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.quota import Period, Quota
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import together

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ACCOUNT = UUID(int=0xA1)
PLANS = {"small": Plan("small", 1000, 100), "large": Plan("large", 1_000_000)}


class Row:
    """The rows of an account, as store/people/quota keeps them; answers come when they are let through."""

    def __init__(self) -> None:
        self.counts: dict[Period, tuple[date, int]] = {}
        self.queries = 0
        self.held: list[Deferred[None]] | None = None
        self.away: Unavailable | None = None

    async def lease(
        self, account_id: UUID, period: Period, starts: date, most: int, need: int, wanted: int, latest: date | None = None
    ) -> tuple[int, int]:
        self.queries += 1
        if self.held is not None:
            self.held.append(Deferred())
            await self.held[-1]
        if self.away:
            raise self.away
        known, taken = self.counts.get(period, (starts, 0))
        taken = 0 if known < starts else taken
        granted = min(wanted, most - taken) if most - taken >= need else 0
        self.counts[period] = max(known, starts), taken + granted
        return granted, taken + granted

    async def give_back(self, parts: Sequence[tuple[UUID, Period, date, int]]) -> None:
        if self.away:
            raise self.away
        for _, period, starts, count in parts:
            known, taken = self.counts[period]
            if known == starts:
                self.counts[period] = known, max(0, taken - count)

    async def taken(self, account_id: UUID, day: date, month: date) -> Mapping[Period, int]:
        return {period: taken for period, (starts, taken) in self.counts.items() if starts == {"day": day, "month": month}[period]}


def clock_at(moment: datetime = NOW) -> Clock:
    clock = Clock()
    clock.advance(moment.timestamp())
    return clock


def done(coroutine: Any) -> Any:
    results: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    [result] = results
    return result


def test_blocks_are_leased_and_given_out_without_asking() -> None:
    row = Row()
    quotas = Quotas(row, clock_at(), PLANS)
    for _ in range(1000):
        assert isinstance(done(quotas.take(ACCOUNT, "large", 1)), Taken)
    assert row.queries == 1 and row.counts["month"][1] == BLOCK and quotas.held == 0
    assert quotas.used(ACCOUNT) == {"month": 1000} and done(quotas.usage(ACCOUNT, "large")) == {"month": Used(1000, 1_000_000)}
    assert done(quotas.take(ACCOUNT, None, 5)) == Taken(5, ())  # no plan, no quota
    assert done(Quotas(row, clock_at(), PLANS, default="small").take(ACCOUNT, None, 101)).period == "day"


def test_a_block_that_was_leased_under_a_larger_plan_does_not_exceed_the_smaller_one() -> None:
    row, clock = Row(), clock_at()
    first, second = [Quotas(row, clock, {**PLANS, "fewer": Plan("fewer", 1500), "fewest": Plan("fewest", 50)}) for _ in "ab"]
    for quotas in (first, second):
        assert isinstance(done(quotas.take(ACCOUNT, "large", 10)), Taken)
    assert isinstance(done(first.take(ACCOUNT, "fewer", 10)), Taken) and done(second.give_back(idle=0.0)) is None
    assert isinstance(done(first.take(ACCOUNT, "fewer", 10)), Taken)
    refused = done(first.take(ACCOUNT, "fewest", 11))
    assert isinstance(refused, Exhausted) and (refused.used, refused.limit) == (40, 50)
    assert isinstance(done(first.take(ACCOUNT, "fewest", 10)), Taken) and row.counts["month"][1] == 50
    assert isinstance(done(first.take(ACCOUNT, "fewest", 1)), Exhausted)
    assert isinstance(done(first.take(ACCOUNT, "large", 1)), Taken)


def test_what_does_not_fit_takes_nothing_of_any_period() -> None:
    row = Row()
    quotas = Quotas(row, clock_at(), PLANS)
    refused = done(quotas.take(ACCOUNT, "small", 101))
    assert (refused.period, refused.wanted, refused.used, refused.limit) == ("day", 101, 0, 100)
    assert refused.resets_at == datetime(2026, 11, 22, tzinfo=UTC)
    assert isinstance(done(quotas.take(ACCOUNT, "small", 100)), Taken)
    assert quotas.used(ACCOUNT) == {"day": 100, "month": 100} and quotas.refused == {"day": 1}


def test_a_refusal_is_believed_for_a_moment() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    done(quotas.take(ACCOUNT, "small", 100))
    before = row.queries
    for _ in range(50):
        assert isinstance(done(quotas.take(ACCOUNT, "small", 1)), Exhausted)
    assert row.queries == before  # the day is known to be used up
    row.counts["day"] = row.counts["day"][0], 90  # somebody gave some back
    clock.advance(1.5)
    assert isinstance(done(quotas.take(ACCOUNT, "small", 1)), Taken)


def test_a_new_day_begins_with_nothing() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    done(quotas.take(ACCOUNT, "small", 100))
    assert isinstance(done(quotas.take(ACCOUNT, "small", 1)), Exhausted)
    clock.advance(12 * 3600)
    assert quotas.used(ACCOUNT) == {"month": 100}
    assert isinstance(done(quotas.take(ACCOUNT, "small", 100)), Taken)
    assert quotas.used(ACCOUNT) == {"day": 100, "month": 200}


def test_what_lies_unused_goes_back() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    done(quotas.take(ACCOUNT, "large", 1))
    done(quotas.give_back())
    assert quotas.held == BLOCK - 1  # it may be used any moment
    clock.advance(IDLE)
    row.away = Unavailable("It is away.")
    assert isinstance(done(quotas.give_back()).value, Unavailable) and quotas.held == BLOCK - 1
    row.away = None
    done(quotas.give_back())
    assert (quotas.held, row.counts["month"][1]) == (0, 1)
    assert done(quotas.usage(ACCOUNT, "large")) == {"month": Used(1, 1_000_000)}
    done(quotas.take(ACCOUNT, "large", 1))
    done(quotas.give_back(idle=0.0))  # the end
    assert (quotas.held, row.counts["month"][1]) == (0, 2)


def test_a_count_that_cannot_be_reached_takes_nothing() -> None:
    row = Row()
    quotas = Quotas(row, clock_at(), PLANS)
    done(quotas.take(ACCOUNT, "small", 6))
    row.away = Unavailable("It is away.")
    assert isinstance(done(quotas.take(ACCOUNT, "small", 50)).value, Unavailable)
    row.away = None
    assert quotas.used(ACCOUNT) == {"day": 6, "month": 6}


def test_what_may_have_gone_back_is_not_given_out_twice() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    done(quotas.take(ACCOUNT, "large", 1))
    row.away = Unavailable("It is away.", unknown=True)
    assert isinstance(done(quotas.give_back(idle=0.0)).value, Unavailable) and quotas.held == 0


def test_while_the_database_fails_requests_do_not_wait_for_all_those_before() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    row.held, row.away = [], Unavailable("a lock")
    errors: list[type[BaseException]] = []
    for _ in range(20):
        Deferred.fromCoroutine(quotas.take(ACCOUNT, "small", 1)).addErrback(lambda failure: errors.append(failure.type))
    clock.advance(PATIENCE + 1)
    late: list[Any] = []
    Deferred.fromCoroutine(quotas.take(ACCOUNT, "small", 1)).addBoth(late.append)
    row.held[0].callback(None)
    assert errors == [Unavailable] * 20 and row.queries == 2, "the one that has just come tries itself"
    row.away = None
    row.held.pop(1).callback(None)
    row.held[1].callback(None)  # of the month
    assert isinstance(late[0], Taken)


def test_who_is_silent_for_long_is_forgotten_but_not_what_is_under_way() -> None:
    row, clock = Row(), clock_at()
    quotas = Quotas(row, clock, PLANS)
    taken = done(quotas.take(ACCOUNT, "large", 5))
    for _ in range(3):
        clock.advance(IDLE)
        done(quotas.give_back())
    quotas.refund(taken)
    done(quotas.give_back())
    assert row.counts["month"][1] == 0 and quotas.used(ACCOUNT) == {"month": 0}
    clock.advance(100)
    done(quotas.give_back())
    assert quotas.used(ACCOUNT) == {}


def test_many_at_once_ask_once() -> None:
    row = Row()
    row.held = []
    quotas = Quotas(row, clock_at(), PLANS)
    results: list[Any] = []
    for _ in range(400):
        Deferred.fromCoroutine(quotas.take(ACCOUNT, "large", 1)).addBoth(results.append)
    assert (row.queries, results) == (1, [])
    row.held.pop().callback(None)
    assert row.queries == 1 and len(results) == 400 and all(isinstance(result, Taken) for result in results)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans(), st.integers(0, 12)), max_size=60), st.integers(1, 400))
def test_never_more_than_the_limit_and_at_rest_nothing_is_lost(steps: list[tuple[int, int, bool, int]], limit: int) -> None:
    """Processes that take, give back what was not sent, and lie still: never above the limit; in the end the row has what was used."""
    row, clock = Row(), clock_at()
    processes = [Quotas(row, clock, {"p": Plan("p", limit)}) for _ in range(3)]
    used = 0
    for number, count, sent, seconds in steps:
        clock.advance(seconds)
        if seconds > IDLE:
            done(processes[number].give_back())
        taken = done(processes[number].take(ACCOUNT, "p", count))
        if isinstance(taken, Taken) and sent:
            used += count
        elif isinstance(taken, Taken):
            processes[number].refund(taken)
        assert used <= row.counts["month"][1] <= limit
    for process in processes:
        done(process.give_back(idle=0.0))
    assert row.counts.get("month", (None, 0))[1] == used


@pytest_twisted.ensureDeferred
async def test_fifty_clients_of_two_processes_get_no_more_than_there_is(pool: Pool) -> None:
    """Against the real table, with sizes that differ: all that was allowed is at most the limit, and a block at most is left."""
    store, rng = Quota(pool), random.Random(9)
    limit = 500
    processes = [Quotas(store, clock_at(), {"p": Plan("p", limit, limit)}) for _ in range(2)]
    allowed: list[int] = []

    async def client(quotas: Quotas, sizes: list[int]) -> None:
        for size in sizes:
            if isinstance(await quotas.take(ACCOUNT, "p", size), Taken):
                allowed.append(size)

    await together(*(client(processes[n % 2], [rng.randrange(1, 4) for _ in range(10)]) for n in range(50)))
    left = limit - sum(allowed)
    assert 0 <= left <= limit // 16 and sum(process.refused.total() for process in processes) > 0
    held = sum(process.held for process in processes)
    for process in processes:
        await process.give_back(idle=0.0)
    assert await store.taken(ACCOUNT, NOW.date(), NOW.date().replace(day=1)) == {"day": sum(allowed), "month": sum(allowed)}
    assert held >= left


@pytest.mark.parametrize("period", ["day", "month"])
@pytest_twisted.ensureDeferred
async def test_the_row_knows_its_period(pool: Pool, period: Period) -> None:
    store = Quota(pool)
    first, second = date(2026, 11, 30 if period == "day" else 1), date(2026, 12, 1)
    assert await store.lease(ACCOUNT, period, first, 10, 3, 4) == (4, 4)
    assert await store.lease(ACCOUNT, period, first, 10, 7, 8) == (0, 4)
    assert await store.lease(ACCOUNT, period, first, 10, 5, 8) == (6, 10)
    assert await store.lease(ACCOUNT, period, second, 10, 1, 2) == (2, 2)
    assert await store.lease(ACCOUNT, period, first, 10, 1, 2, second) == (2, 4)  # a clock that is late takes from the new period
    await store.give_back([(ACCOUNT, period, first, 2)])  # of a period that is over: nobody's
    assert (await store.lease(ACCOUNT, period, second, 4, 1, 1)) == (0, 4)  # the plan is smaller now
    await store.give_back([(ACCOUNT, period, second, 3), (UUID(int=1), period, second, 3)])
    assert (await store.lease(ACCOUNT, period, second, 4, 2, 9)) == (3, 4)
    assert (await store.lease(ACCOUNT, period, date(2031, 1, 1), 4, 4, 4)) == (4, 4)  # the clock was wrong
    assert (await store.lease(ACCOUNT, period, second, 4, 2, 2)) == (2, 2)
    assert (await store.lease(ACCOUNT, period, second, 4, 2, 2)) == (2, 4)


@pytest_twisted.ensureDeferred
async def test_at_midnight_two_processes_begin_the_same_new_day(pool: Pool) -> None:
    """What one of them had left of the day before is of no use to anybody, and takes nothing from the new day."""
    store, account_id = Quota(pool), (await Accounts(pool, clock_at()).create("One")).id
    clocks = [clock_at(datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC)) for _ in range(2)]
    one, other = processes = [Quotas(store, clock, PLANS) for clock in clocks]

    async def take_all() -> int:
        taken = 0
        while isinstance(await processes[taken % 2].take(account_id, "small", 1), Taken):
            taken += 1
        return taken

    assert isinstance(await other.take(account_id, "small", 40), Taken)
    unsent = await one.take(account_id, "small", 50)
    assert isinstance(unsent, Taken)
    one.refund(unsent)
    for clock in clocks:
        clock.advance(20)
    await one.give_back(idle=0.0)
    assert await take_all() == 100
    refusals = [await quotas.take(account_id, "small", 1) for quotas in processes]
    assert all(isinstance(each, Exhausted) and each.resets_at == datetime(2026, 12, 2, tzinfo=UTC) for each in refusals)
    for quotas in processes:
        assert quotas.used(account_id)["day"] == 100 and (await quotas.usage(account_id, "small"))["day"] == Used(100, 100)


@pytest_twisted.ensureDeferred
async def test_after_the_clock_was_set_back_the_present_day_and_month_count(pool: Pool) -> None:
    """Across midnight and the end of a month: nothing of the quota gets lost, and `usage` shows what was used."""
    store, account_id = Quota(pool), (await Accounts(pool, clock_at()).create("One")).id
    ahead, back = datetime(2026, 12, 1, 0, 10, tzinfo=UTC), datetime(2026, 11, 30, 23, 50, tzinfo=UTC)
    await pool.run("INSERT INTO rollups VALUES (%s, %s, %s, 'email.sent', 30)", (account_id, back.replace(minute=0), account_id))
    assert isinstance(await Quotas(store, clock_at(ahead), PLANS).take(account_id, "small", 1), Taken)
    for used in (31, 32, 33):
        quotas = Quotas(store, clock_at(back), PLANS)
        assert isinstance(await quotas.take(account_id, "small", 1), Taken)
        assert await quotas.usage(account_id, "small") == {"day": Used(used, 100), "month": Used(used, 1000)}
        await quotas.give_back(idle=0.0)
    late = Quotas(store, clock_at(datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)), PLANS)
    await Quotas(store, clock_at(ahead), PLANS).take(account_id, "small", 5)
    assert isinstance(await late.take(account_id, "small", 1), Taken)
    assert await pool.rows("SELECT DISTINCT starts FROM quota") == [(date(2026, 12, 1),)], "a clock that is only late sets nothing back"


@pytest_twisted.ensureDeferred
async def test_a_plan_after_a_time_without_one_counts_what_was_sent_meanwhile(pool: Pool) -> None:
    """Without a limit nothing is leased, so the row of the period has too little."""
    store, month, rollup = Quota(pool), NOW.date().replace(day=1), "INSERT INTO rollups VALUES (%s, %s, %s, 'email.sent', 30)"
    quotas, account_id = Quotas(store, clock_at(), PLANS), (await Accounts(pool, clock_at()).create("One")).id
    assert quotas.uncounted(None, "small", None) == ["day", "month"] and quotas.uncounted("large", "small", None) == ["day"]
    assert quotas.uncounted("small", "large", None) == quotas.uncounted("large", "small", 50) == []
    for period in PERIODS:
        assert await store.lease(account_id, period, month, 1000, 4, 4) == (4, 4)
    await pool.run(rollup, (account_id, NOW, account_id))
    await store.plan(account_id, "small", uncounted=quotas.uncounted(None, "small", None))
    assert await store.taken(account_id, NOW.date(), month) == {"day": 30, "month": 30}
    assert await store.lease(account_id, "month", month, 1000, 1, 1) == (1, 31)
    await store.plan(account_id, "large", uncounted=quotas.uncounted("small", "large", None))
    assert await store.taken(account_id, NOW.date(), month) == {"day": 30, "month": 31}
    assert await pool.rows("SELECT plan FROM accounts WHERE id = %s", (account_id,)) == [("large",)]
