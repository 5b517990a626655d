"""Account turns, connection slots, health of destinations and recent messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mailsvc.delivery.admission.budget import Budget
from mailsvc.delivery.admission.health import Healths
from mailsvc.delivery.admission.memory import RecentMessages
from mailsvc.delivery.admission.slots import Slots
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.shaping import Limits
from mailsvc.delivery.transaction import AccountTurns, Transaction, from_rows
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.queue.claims import Leased
from tests.delivery.fakes import number


def leased(email: int, recipient: int = 0, account: int = 1, *, bulk: bool = False) -> Leased:
    return Leased(
        number(account), number(email), recipient, number(9), "eu", "a@b.example", "mx", 0, "queued", datetime(2030, 1, 1, tzinfo=UTC), bulk
    )


def transaction(email: int, account: int = 1, *, bulk: bool = False) -> Transaction:
    [found] = from_rows([leased(email, account=account, bulk=bulk)], 7, 100)
    return found


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=40))
def test_accounts_take_turns_and_nothing_is_lost(puts: list[tuple[int, bool]]) -> None:
    turns = AccountTurns()
    for email, (account, bulk) in enumerate(puts):
        turns.put(transaction(email, account, bulk=bulk))
    assert len(turns) == len(puts)
    order = turns.drain()
    assert len(turns) == 0
    assert sorted(each.email_id.int for each in order) == list(range(len(puts)))
    assert [each.bulk for each in order] == sorted(each.bulk for each in order)
    for bulk in (False, True):
        line = [each for each in order if each.bulk == bulk]
        for account in {each.account_id for each in line}:
            own = [each.email_id.int for each in line if each.account_id == account]
            assert own == sorted(own)
            for index, position in enumerate(n for n, each in enumerate(line) if each.account_id == account):
                assert position <= (index + 1) * len({each.account_id for each in line})


def test_mail_that_was_begun_goes_first() -> None:
    turns = AccountTurns()
    for email in range(3):
        turns.put(transaction(email, account=email))
    turns.put(transaction(9, account=2), first=True)
    assert turns.drain()[0].email_id == number(9)


def test_rows_become_transactions_of_limited_size() -> None:
    rows = [leased(1, recipient) for recipient in range(250)] + [leased(2, 0)]
    transactions = list(from_rows(rows, 7, 100))
    assert [len(each.recipients) for each in transactions] == [100, 100, 50, 1]
    assert sum(len(each.keys) for each in transactions) == 251


def taken(slots: Slots, proven: bool, wake: Callable[[], None]) -> bool:
    if slots.left(proven) > 0:
        slots.take()
        return True
    slots.wait(wake, transactional=True)
    return False


def test_a_third_of_the_slots_is_kept_for_proven_destinations() -> None:
    slots, woken = Slots(9), list[str]()

    def wake() -> None:
        woken.append("new")

    assert [taken(slots, False, wake) for _ in range(8)] == [True] * 6 + [False] * 2
    assert [taken(slots, True, wake) for _ in range(4)] == [True] * 3 + [False]
    slots.give_back()
    assert woken == ["new"]  # once, however often it was called
    slots.give_back()
    assert woken == ["new"]


def test_idle_connections_are_closed_for_those_that_wait() -> None:
    slots, closed = Slots(1), list[int]()

    def close() -> None:
        closed.append(1)

    assert taken(slots, True, lambda: None)
    slots.start_idle(close)
    assert not taken(slots, True, lambda: None)
    assert closed == [1]


def test_those_that_wait_are_woken_in_order_until_one_takes_the_slot() -> None:
    slots, woken = Slots(1), list[str]()

    def first() -> None:
        woken.append("first, which needs none any more")

    def second() -> None:
        if taken(slots, True, second):
            woken.append("second")

    assert taken(slots, True, first)
    taken(slots, True, first)
    taken(slots, True, second)
    slots.give_back()
    assert woken == ["first, which needs none any more", "second"]
    assert slots.taken == 1


@pytest.mark.parametrize("make", [lambda: Slots(2), lambda: Budget(Clock(), Limits(connections=2), lambda: 1, lambda: None)])
def test_all_that_a_wake_frees_is_taken(make: Callable[[], Slots | Budget]) -> None:
    """One that cannot use the slot closes an idle connection while it asks: two of those that wait can go."""
    sharing, took = make(), list[str]()

    def take(name: str) -> None:
        sharing.take()
        took.append(name)

    sharing.take()
    sharing.take()
    for wake in (sharing.give_back, partial(take, "a"), partial(take, "b")):
        wait(sharing, wake)
    sharing.give_back()
    assert took == ["a", "b"]


@pytest.mark.parametrize("make", [lambda: Slots(1), lambda: Budget(Clock(), Limits(connections=1), lambda: 1, lambda: None)])
def test_more_can_wait_than_the_stack_is_deep(make: Callable[[], Slots | Budget]) -> None:
    """Each of them fails at once, as where no host has an address that mail may be sent to."""
    sharing, woken, count = make(), list[int](), 2 * sys.getrecursionlimit()

    def fail(which: int) -> None:
        sharing.take()
        woken.append(which)
        sharing.give_back()

    sharing.take()
    for each in range(count):
        wait(sharing, partial(fail, each))
    sharing.give_back()
    assert woken == list(range(count))
    assert (sharing.open if isinstance(sharing, Budget) else sharing.taken) == 0


@pytest.mark.parametrize("make", [lambda: Slots(1), lambda: Budget(Clock(), Limits(connections=1), lambda: 1, lambda: None)])
def test_one_that_is_woken_may_end_the_wait_of_all(make: Callable[[], Slots | Budget]) -> None:
    """As when it finds that no source address may send to the provider."""
    sharing, woken = make(), list[int]()
    wakes = [lambda: (woken.append(1), [sharing.stop_waiting(each) for each in wakes]), lambda: woken.append(2)]
    sharing.take()
    for wake in wakes:
        wait(sharing, wake)
    sharing.give_back()
    assert woken == [1]


def wait(sharing: Slots | Budget, wake: Callable[[], object]) -> None:
    if isinstance(sharing, Slots):
        sharing.wait(wake, transactional=True)  # type: ignore[arg-type]
    else:
        sharing.wait(wake)  # type: ignore[arg-type]


def test_connections_grow_with_success_and_shrink_with_failure() -> None:
    clock = Clock()
    health = Healths(clock, DeliveryLimits(connections_initial=2, connections_max=8)).of("mx")
    assert (health.allowed, health.proven) == (2, False)
    for _ in range(20):
        health.succeeded()
    assert (health.allowed, health.proven) == (8, True)
    assert [health.failed() for _ in range(3)] == [False, False, True]
    assert health.allowed == 1
    health.succeeded()
    assert not health.failed()


def test_after_a_refused_connection_the_next_try_is_later_each_time() -> None:
    clock = Clock()
    health = Healths(clock, DeliveryLimits()).of("mx")
    for _ in range(10):
        health.succeeded()
    health.refuse(3)
    assert health.allowed == 3
    assert (health.refused, health.retry_in) == (1, 10)
    clock.advance(10)
    assert health.retry_in == 0
    health.refuse(3)
    clock.advance(19)
    assert (health.refused, health.retry_in) == (2, 1)
    clock.advance(1)
    assert health.retry_in == 0
    health.grew()
    assert health.refused == 0


def test_success_of_long_ago_does_not_count() -> None:
    clock = Clock()
    healths = Healths(clock, DeliveryLimits())
    for _ in range(30):
        healths.of("mx").succeeded()
    assert healths.of("mx").allowed == 20
    clock.advance(3601)
    assert (healths.of("mx").allowed, healths.of("mx").proven) == (2, False)


def test_the_oldest_messages_make_room_for_new_ones() -> None:
    recent = RecentMessages(800)
    for email in range(10):
        recent.keep(number(email), bytes([email]) * 100, {"n": email})
    recent.keep(number(10), b"x" * 101, None)  # more than its share
    assert [recent.pop(number(email)) is not None for email in range(11)] == [False] * 2 + [True] * 8 + [False]
    assert recent.pop(number(5)) is None
    recent.keep(number(5), b"y", {"smtputf8": True})
    assert recent.pop(number(5)) == (b"y", {"smtputf8": True})


def test_recent_messages_in_files_are_few_and_are_forgotten_soon() -> None:
    recent = RecentMessages(1 << 20)
    messages = [Spooled(b"", io.BytesIO(), 0, 16 * 1000) for _ in range(40)]
    for email, message in enumerate(messages):
        recent.keep(number(email), message, EMPTY)
    assert [number(email) in recent for email in range(40)] == [False] * 8 + [True] * 32
    assert recent.pop(number(39)) == (messages[39], EMPTY)
    recent.forget_files()
    recent.keep(number(100), messages[0], EMPTY)
    recent.keep(number(101), b"in memory", EMPTY)
    recent.forget_files()
    assert [each for each in (*range(40), 100, 101) if number(each) in recent] == [100, 101]
    recent.forget_files()
    assert [each for each in (100, 101) if number(each) in recent] == [101]


def test_a_recent_message_in_a_file_counts_a_sixteenth() -> None:
    recent = RecentMessages(800)
    recent.keep(number(1), Spooled(b"", io.BytesIO(), 0, 16 * 200), EMPTY)
    recent.keep(number(2), Spooled(b"", io.BytesIO(), 0, 16 * 201), EMPTY)
    assert number(1) in recent and number(2) not in recent
    for email in range(3, 10):
        recent.keep(number(email), b"x" * 100, EMPTY)
    assert number(1) not in recent and number(3) in recent
