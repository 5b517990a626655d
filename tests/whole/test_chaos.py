"""The fault experiments of `make chaos`, small. Three that wait for most of their time run beside the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.chaos import experiments
from tests.chaos.ground import SMTP_SINK, Figures

pytestmark = pytest.mark.slow
needs_sink = pytest.mark.skipif(
    SMTP_SINK is None and os.environ.get("MAILSVC_TEST_POSTFIX") != "required", reason="Postfix's smtp-sink is not here (Debian: postfix)"
)


@pytest.fixture(scope="module")
def beside() -> Iterator[dict[str, Future[Figures]]]:
    with ThreadPoolExecutor(2) as threads:
        yield {
            "T12": threads.submit(experiments.stopped_process, 100, 50.0),  # 45 seconds of silence have to pass
            "T9": threads.submit(experiments.bad_dns, 4),  # a look-up that failed counts for 15 seconds
            "T4": threads.submit(experiments.restarted_postgres, 100, 2.0),  # callers wait 5 seconds for a connection
        }


@pytest.mark.usefixtures("beside")
def test_postgres_ends_at_random_moments() -> None:
    figures = experiments.killed_postgres(400, 3)
    assert (figures.accepted, figures.lost) == (400, 0)


@needs_sink
def test_the_reply_to_the_final_dot_is_lost() -> None:
    experiments.lost_replies(10)


@needs_sink
def test_storms_of_refusals_are_met_by_the_schedule() -> None:
    experiments.refusals(60, 8.0)


def test_the_database_is_away_for_a_while(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T4"].result(120)
    assert (figures.lost, figures.duplicates) == (0, 0)


def test_dns_that_fails(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T9"].result(120)
    assert (figures.lost, figures.waiting) == (0, 0)


@needs_sink
def test_tarpits_and_a_dead_domain_delay_nobody_else() -> None:
    figures = experiments.tarpits(100, 2000, 60)
    ratio, during = figures.notes["ratio"], figures.notes["healthy p95 ms"]
    assert ratio <= 2.0 or during < 100, figures.notes  # type: ignore[operator]


def test_a_process_that_is_stopped_and_continued(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T12"].result(180)
    assert (figures.lost, figures.notes["sent after it went on"]) == (0, 0)
