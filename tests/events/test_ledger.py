"""The ledger works after every notification and once a second, one batch after the other, and survives an outage of the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.events import Ledger
from mailsvc.events.ledger import BATCH, POLL, SWEEP_BATCH, SWEEP_EVERY
from mailsvc.store.events.ledger import Lag
from mailsvc.store.postgres.errors import Unavailable


class FakeEventLedger:
    """Answers when a test fires `calls`, or at once with what is in `ready`."""

    def __init__(self) -> None:
        self.calls: list[Deferred[int]] = []
        self.ready: list[int | Exception] = []
        self.swept: list[tuple[datetime, int]] = []
        self.expired = 0

    async def number(self, limit: int) -> int:
        assert limit == BATCH
        answer: Deferred[int] = Deferred()
        self.calls.append(answer)
        if self.ready:
            result = self.ready.pop(0)
            answer.errback(result) if isinstance(result, Exception) else answer.callback(result)
        return await answer

    async def sweep(self, now: datetime, limit: int) -> int:
        self.swept.append((now, limit))
        batch, self.expired = min(self.expired, limit), max(0, self.expired - limit)
        return batch

    async def lag(self, now: datetime) -> Lag:
        return Lag(3, now.timestamp())


class Notifications:
    def __init__(self) -> None:
        self.callbacks: dict[str, Callable[[], None]] = {}

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        self.callbacks[channel] = callback

    def notify(self) -> None:
        self.callbacks["events"]()


def started(*ready: int | Exception) -> tuple[Ledger, FakeEventLedger, Notifications, Clock, list[int]]:
    stored, notifications, clock, numbered = FakeEventLedger(), Notifications(), Clock(), list[int]()
    clock.advance(1000)
    stored.ready = [*ready]
    ledger = Ledger(stored, notifications, clock, numbered=numbered.append)
    ledger.startService()
    clock.advance(0)
    return ledger, stored, notifications, clock, numbered


def test_it_looks_at_once_and_then_every_second() -> None:
    ledger, stored, _, clock, _ = started(0, 0, 0)
    assert len(stored.calls) == 1
    clock.advance(POLL)
    assert len(stored.calls) == 2
    clock.advance(POLL / 2)
    assert len(stored.calls) == 2
    ledger.stopService()


def test_it_continues_while_batches_are_full() -> None:
    ledger, stored, _, _, numbered = started(BATCH, BATCH, 5)
    assert (len(stored.calls), numbered) == (3, [BATCH, BATCH, 5])
    ledger.stopService()


def test_a_notification_wakes_it() -> None:
    ledger, stored, notifications, clock, _ = started(0, 0, 0)
    notifications.notify()
    clock.advance(0)
    assert len(stored.calls) == 2
    clock.advance(POLL)
    assert len(stored.calls) == 3
    assert len(clock.getDelayedCalls()) == 1
    ledger.stopService()


def test_a_notification_during_a_batch_causes_one_more_batch() -> None:
    ledger, stored, notifications, clock, _ = started()
    notifications.notify()
    notifications.notify()
    assert len(stored.calls) == 1
    stored.ready = [0]
    stored.calls[0].callback(1)
    clock.advance(0)
    assert len(stored.calls) == 2
    ledger.stopService()


def test_a_query_is_repeated_after_the_database_was_down() -> None:
    ledger, stored, _, clock, _ = started(Unavailable("away"), 0)
    clock.advance(POLL)
    assert len(stored.calls) == 2
    ledger.stopService()


def test_stopping_waits_for_the_batch_and_begins_no_other() -> None:
    ledger, stored, notifications, clock, _ = started()
    notifications.notify()
    stopped = ledger.stopService()
    assert isinstance(stopped, Deferred) and not stopped.called
    stored.calls[0].callback(BATCH)
    assert stopped.called
    assert len(stored.calls) == 1 and clock.getDelayedCalls() == []
    notifications.notify()
    assert len(stored.calls) == 1


def test_expired_answers_are_swept_once_a_minute_batch_by_batch() -> None:
    ledger, stored, _, clock, _ = started(*[0] * 100)
    assert len(stored.swept) == 1
    stored.expired = SWEEP_BATCH + 1
    for _ in range(int(SWEEP_EVERY / POLL)):
        clock.advance(POLL)
    assert [limit for _, limit in stored.swept] == [SWEEP_BATCH] * 3
    assert stored.swept[0][0] == datetime.fromtimestamp(1000, UTC)
    ledger.stopService()


def test_the_lag_is_asked_with_the_time() -> None:
    ledger, _, _, _, _ = started(0)
    found: list[Lag] = []
    Deferred.fromCoroutine(ledger.lag()).addCallback(found.append)
    assert found == [Lag(3, 1000.0)]
    ledger.stopService()
