"""When domains are checked: after each notification, every half minute, never two polls at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.domains.schedule import CHECK_SECONDS, CONCURRENT, PER_ACCOUNT, POLL, CheckSchedule
from mailsvc.store.postgres.errors import Unavailable


class Rig:
    """Its own checks, maintenance and notifications: names that are due, checked one by one."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.seen: list[Any] = []
        self.looks = 0
        self.slow: Deferred[None] | None = None
        self.fast: set[UUID] = set()  # accounts whose checks are never slow
        self.error: Exception | None = None
        self.away: Deferred[None] | None = None

    def listen(self, channel: str, callback: Any) -> None:
        assert channel == "domains"
        self.notify = callback

    async def due(self, limit: int, share: int, busy: Mapping[UUID, int]) -> list[Any]:
        self.looks += 1
        if self.away is not None:
            await self.away
        if self.error is not None:
            raise self.error
        taken, found = Counter(busy), []
        for domain in [*self.waiting]:
            if len(found) < limit and taken[domain.account_id] < share:
                taken[domain.account_id] += 1
                found.append(domain)
                self.waiting.remove(domain)
        return found

    async def check(self, domain: Any) -> None:
        if self.slow is not None and domain.account_id not in self.fast:
            mine: Deferred[None] = Deferred()
            self.slow.addCallback(lambda _: None if mine.called else mine.callback(None))
            await mine
        self.seen.append(domain)


class Named:
    """A domain; of an account of its own, unless one is given."""

    def __init__(self, name: str, account: int | None = None) -> None:
        self.name = name
        self.account_id = uuid4() if account is None else UUID(int=account)


def rig() -> tuple[Rig, CheckSchedule, Clock]:
    one, clock = Rig(), Clock()
    return one, CheckSchedule(one, one, one, clock), clock


def turns(clock: Clock, count: int = 200) -> None:
    """Let the reactor turn without time passing."""
    for _ in range(count):
        clock.advance(0)


def test_all_due_domains_are_checked() -> None:
    one, rounds, clock = rig()
    one.waiting = [Named(str(n)) for n in range(2 * CONCURRENT + 1)]
    one.notify()
    turns(clock)
    assert one.looks == 0  # not before it is started
    rounds.startService()
    turns(clock)
    assert {domain.name for domain in one.seen} == {str(n) for n in range(2 * CONCURRENT + 1)}
    one.waiting = [Named("later")]
    clock.advance(POLL - 1)
    assert one.waiting
    clock.advance(1)
    turns(clock)
    assert one.seen[-1].name == "later"
    one.waiting = [Named("at once")]
    one.notify()
    turns(clock)
    assert one.seen[-1].name == "at once"
    assert rounds.stopService().called
    assert clock.getDelayedCalls() == []


def test_a_notification_during_a_poll_causes_another_poll() -> None:
    one, rounds, clock = rig()
    one.away = Deferred()
    rounds.startService()
    turns(clock)
    one.notify()
    turns(clock)
    one.notify()
    turns(clock)
    assert one.looks == 1
    away, one.away, one.waiting = one.away, None, []
    away.callback(None)
    turns(clock)
    assert one.looks == 2
    rounds.stopService()


def test_a_slow_check_does_not_delay_others() -> None:
    one, rounds, clock = rig()
    one.slow, one.waiting = Deferred(), [Named("slow") for _ in range(CONCURRENT - 1)]
    rounds.startService()
    turns(clock)
    slow, one.slow = one.slow, None
    one.waiting = [Named(str(n)) for n in range(50)]
    one.notify()
    turns(clock)
    assert [domain.name for domain in one.seen] == [str(n) for n in range(50)]
    slow.callback(None)
    turns(clock)
    assert len(one.seen) == 49 + CONCURRENT
    rounds.stopService()
    assert clock.getDelayedCalls() == []


def test_slow_domains_of_one_account_do_not_delay_others() -> None:
    one, rounds, clock = rig()
    one.slow, one.fast = Deferred(), {UUID(int=2)}
    one.waiting = [*(Named(f"slow{n}", 1) for n in range(10 * CONCURRENT)), *(Named(f"fast{n}", 2) for n in range(50))]
    rounds.startService()
    turns(clock)
    assert {domain.name for domain in one.seen} == {f"fast{n}" for n in range(50)}
    assert len(one.waiting) == 10 * CONCURRENT - PER_ACCOUNT
    rounds.stopService()
    one.slow.callback(None)
    turns(clock)
    assert clock.getDelayedCalls() == []


def test_an_endless_check_times_out() -> None:
    one, rounds, clock = rig()
    one.slow, one.waiting = Deferred(), [Named(f"slow{n}") for n in range(CONCURRENT)]
    rounds.startService()
    turns(clock)
    one.waiting = [Named("next")]
    one.slow = None
    clock.advance(CHECK_SECONDS - 1)
    assert one.seen == []
    clock.advance(1)
    turns(clock)
    assert [domain.name for domain in one.seen] == ["next"]
    assert rounds.stopService().called


def test_stopping_waits_for_running_checks() -> None:
    one, rounds, clock = rig()
    one.slow, one.waiting = Deferred(), [Named(str(n)) for n in range(CONCURRENT + 1)]
    rounds.startService()
    turns(clock)
    stopped = rounds.stopService()
    assert not stopped.called
    one.slow.callback(None)
    turns(clock)
    assert stopped.called and len(one.seen) == CONCURRENT and clock.getDelayedCalls() == []


def test_checks_continue_after_a_database_failure() -> None:
    one, rounds, clock = rig()
    one.error = Unavailable("away")
    rounds.startService()
    turns(clock)
    one.error, one.waiting = None, [Named("back")]
    clock.advance(POLL)
    turns(clock)
    assert one.seen[0].name == "back"
    rounds.stopService()
