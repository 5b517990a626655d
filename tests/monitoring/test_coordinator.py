"""What /readyz, the metrics and the doctor say about the coordinator of a cell's cluster, and when it is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.monitoring import metrics
from mailsvc.monitoring.coordinator import EVERY, MEANING, CoordinatorWatch, finding
from mailsvc.monitoring.metrics import Exposition
from mailsvc.monitoring.readiness import Monitoring
from mailsvc.monitoring.regions import RegionWatch
from mailsvc.runtime.lifecycle import Opened
from mailsvc.store.logs.figures import Vitals
from mailsvc.store.postgres.cells import directly
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool

AT = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
WHY = "db-0:5432: Connection refused"


class Attempts:
    """The attempts to connect, which end when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.advance(AT)
        self.times: list[float] = []
        self._waiting: list[Deferred[str | None]] = []
        self.watch = CoordinatorWatch(self._try, self.clock)
        loop = self.watch.loop()
        loop.start()
        self.clock.advance(0)

    def _try(self) -> Deferred[str | None]:
        self.times.append(self.clock.seconds() - AT)
        self._waiting.append(Deferred())
        return self._waiting[-1]

    def end(self, result: str | Exception | None, after: float = 0.0) -> None:
        self.clock.advance(after)
        [waiting] = self._waiting
        self._waiting.clear()
        waiting.errback(result) if isinstance(result, Exception) else waiting.callback(result)


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    with capturedLogs():
        yield Attempts()


def reported(watch: CoordinatorWatch) -> str | None:
    found: list[str | None] = []
    Deferred.fromCoroutine(watch.problem()).addCallback(found.append)
    return found[0]


def test_the_report_says_since_when_and_what_it_means_and_disappears(attempts: Attempts) -> None:
    assert reported(attempts.watch) is None
    attempts.end(None)
    attempts.clock.advance(EVERY)
    attempts.end(WHY, after=5)
    report = f"this process has been unable to connect to the cluster's coordinator since 2027-01-15 08:00:15 UTC: {MEANING}"
    assert reported(attempts.watch) == report
    attempts.clock.advance(EVERY)
    attempts.end(WHY, after=5)
    assert reported(attempts.watch) == report
    attempts.clock.advance(EVERY)
    attempts.end(None)
    assert reported(attempts.watch) is None
    attempts.clock.advance(EVERY)
    attempts.end(WHY)
    assert "since 2027-01-15 08:01:10 UTC" in str(reported(attempts.watch))


def test_one_attempt_is_made_at_a_time_and_the_next_15_seconds_after_it(attempts: Attempts) -> None:
    attempts.clock.pump([EVERY] * 4)
    assert attempts.times == [0.0]
    attempts.end(WHY)
    attempts.clock.advance(EVERY - 1)
    assert attempts.times == [0.0]
    attempts.clock.advance(1)
    assert attempts.times == [0.0, 75.0]


def test_a_node_that_does_not_say_where_the_coordinator_is_changes_nothing(attempts: Attempts) -> None:
    attempts.end(WHY)
    before = reported(attempts.watch)
    attempts.clock.advance(EVERY)
    attempts.end(Unavailable("away"))
    assert reported(attempts.watch) == before
    attempts.clock.advance(EVERY)
    attempts.end(None)
    assert reported(attempts.watch) is None


@pytest_twisted.ensureDeferred
async def test_the_log_says_why_once_and_when_it_is_over() -> None:
    results = iter([WHY, WHY, None, None])

    async def ask() -> str | None:
        return next(results)

    watch = CoordinatorWatch(ask, Clock())
    with capturedLogs() as events:
        for _ in range(4):
            await watch.look()
    assert [event["log_format"].partition(" (")[0] for event in events] == [
        "cannot connect to the cluster's coordinator",
        "can connect to the cluster's coordinator again",
    ]
    assert events[0]["why"] == WHY


def sample(watch: CoordinatorWatch | None) -> list[bytes]:
    exposition = Exposition()
    metrics.coordinator(watch)(exposition)
    return [line for line in exposition.text().splitlines() if not line.startswith(b"#")]


def test_the_metric_is_there_in_a_cell(attempts: Attempts) -> None:
    assert sample(None) == []
    assert sample(attempts.watch) == [b"mailsvc_coordinator_up 1.0"]
    attempts.end(WHY)
    assert sample(attempts.watch) == [b"mailsvc_coordinator_up 0.0"]


def test_the_doctor_says_why() -> None:
    assert finding(None).state == "ok"
    found = finding(WHY)
    assert (found.state, f"({WHY})" in found.found, bool(found.remedy)) == ("warning", True, True)


class NoDatabase(Pool):
    """Knows its DSN alone."""

    async def rows(self, sql: Any, params: Any = ()) -> list[Any]:
        raise Unavailable("away")


@pytest.mark.parametrize(("dsn", "watched"), [("dbname=mail", False), (directly("dbname=mail", "red"), True)])
@pytest_twisted.ensureDeferred
async def test_only_processes_of_a_cell_have_the_check(dsn: str, watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, opened = Clock(), Opened()
    monkeypatch.setattr(Vitals, "look", _nothing)
    pool = NoDatabase(dsn, clock)
    monitoring = Monitoring(clock, pool, None, lambda: 1, RegionWatch(pool, []))
    assert ("coordinator" in monitoring.remarks) is watched
    await monitoring.start(opened)
    with capturedLogs() as events:
        clock.advance(0)
    assert [event["what"] for event in events] == (["looking for the coordinator"] if watched else [])
    await opened.close()
    assert [each for each in clock.getDelayedCalls() if each.active()] == []


async def _nothing(vitals: Vitals) -> None:
    """There is no database."""
