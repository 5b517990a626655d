"""The polling loop: when it polls, how it retries, and how it stops."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.runtime.polling import LONGEST_RETRY, WOKEN_RETRY, PollingLoop, every
from mailsvc.store.postgres.errors import Unavailable


class Work:
    """Counts its polls. `results`: what the next polls raise or wait for."""

    def __init__(self):
        self.clock = Clock()
        self.times = []
        self.results = []

    async def poll(self):
        self.times.append(self.clock.seconds())
        result = self.results.pop(0) if self.results else None
        if isinstance(result, Exception):
            raise result
        if result is not None:
            await result

    def loop(self, interval=10.0, **options):
        return PollingLoop(self.clock, "counting", self.poll, interval, **options)


@pytest.fixture
def work():
    return Work()


def stopped(loop):
    ended = []
    Deferred.fromCoroutine(loop.stop()).addCallback(ended.append)
    return ended


def test_it_polls_at_once_and_then_once_per_interval(work):
    loop = work.loop()
    loop.start()
    work.clock.pump([0, 9, 1, 9, 1])
    assert work.times == [0, 10, 20]
    assert stopped(loop) and work.clock.getDelayedCalls() == []


def test_every_polls_first_after_an_interval(work):
    stop = every(work.clock, 10.0, "counting", work.poll)
    work.clock.pump([9, 1])
    assert work.times == [10]
    Deferred.fromCoroutine(stop())
    work.clock.pump([10, 10])
    assert work.times == [10]


def test_wake_ups_in_one_turn_of_the_reactor_cause_one_poll(work):
    loop = work.loop()
    loop.wake()  # not started yet
    loop.start()
    work.clock.advance(0)
    for _ in range(3):
        loop.wake()
    work.clock.pump([0, 5, 5])
    assert work.times == [0, 0, 10]


def test_a_wake_up_during_a_poll_causes_one_more_after_it(work):
    loop, step = work.loop(), Deferred()
    work.results = [step]
    loop.start()
    work.clock.advance(3)
    loop.wake()
    loop.wake()
    work.clock.advance(20)
    assert work.times == [3]
    step.callback(None)
    work.clock.pump([0, 0])
    assert work.times == [3, 23]


def test_pauses_grow_with_each_failure_and_shrink_after_a_success(work):
    loop = work.loop(interval=1.0)
    work.results = [Unavailable("away") for _ in range(5)]
    with capturedLogs() as logs:
        loop.start()
        work.clock.pump([0.5] * 60)
    assert work.times[:8] == [0.5, 1.5, 3.5, 7.5, 7.5 + LONGEST_RETRY, 7.5 + 2 * LONGEST_RETRY, 18.5, 19.5]
    assert [(log["what"], log["pause"]) for log in logs if "pause" in log] == [("counting", pause) for pause in (1, 2, 4, 5, 5)]
    assert not any("log_failure" in log for log in logs)


def test_a_long_interval_may_have_short_retries(work):
    work.results = [Unavailable("away"), Unavailable("away")]
    loop = work.loop(interval=10.0, retry=1.0)
    loop.start()
    work.clock.pump([0] + [1] * 13)
    assert work.times == [0, 1, 3, 13]
    stopped(loop)


def test_an_unexpected_failure_is_logged_with_its_traceback_and_retried(work):
    loop = work.loop()
    work.results = [LookupError("a bug")]
    with capturedLogs() as logs:
        loop.start()
        work.clock.pump([0, 10])
    assert work.times == [0, 10]
    assert [log["log_failure"].type for log in logs if "log_failure" in log] == [LookupError]
    stopped(loop)


def test_a_wake_up_after_a_failure_polls_soon_but_not_at_once(work):
    loop = work.loop()
    work.results = [Unavailable("away")]
    loop.start()
    work.clock.advance(0)
    loop.wake()
    work.clock.advance(0)
    assert work.times == [0]
    work.clock.advance(WOKEN_RETRY)
    assert work.times == [0, WOKEN_RETRY]
    stopped(loop)


def test_a_poll_is_cancelled_at_its_deadline(work):
    loop = work.loop(deadline=30.0)
    work.results = [Deferred()]
    with capturedLogs() as logs:
        loop.start()
        work.clock.pump([0, 29, 1, 10])
    assert work.times == [0, 40]
    assert [log["what"] for log in logs if "pause" in log] == ["counting"]
    stopped(loop)


def test_wake_ups_wait_for_the_end_of_the_rest(work):
    loop, step = work.loop(rest=lambda seconds: 2 * seconds), Deferred()
    work.results = [step]
    loop.start()
    work.clock.pump([0, 3])
    step.callback(None)
    loop.wake()
    work.clock.pump([5, 1])
    assert work.times == [0, 9]
    stopped(loop)


def test_stopping_waits_for_the_poll_and_starts_no_other(work):
    loop, step = work.loop(), Deferred()
    work.results = [step]
    loop.start()
    work.clock.advance(0)
    loop.wake()
    ended = stopped(loop)
    assert ended == []
    step.callback(None)
    assert ended == [None]
    loop.wake()
    work.clock.pump([0, 20])
    assert work.times == [0] and work.clock.getDelayedCalls() == []
