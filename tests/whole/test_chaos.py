"""The fault experiments of `make chaos`, small."""

from __future__ import annotations

import os

import pytest

from tests.chaos import experiments
from tests.chaos.ground import SMTP_SINK

pytestmark = pytest.mark.slow
needs_sink = pytest.mark.skipif(
    SMTP_SINK is None and os.environ.get("MAILSVC_TEST_POSTFIX") != "required", reason="Postfix's smtp-sink is not here (Debian: postfix)"
)


def test_postgres_ends_at_random_moments() -> None:
    figures = experiments.killed_postgres(400, 3)
    assert (figures.accepted, figures.lost) == (400, 0)


def test_the_database_is_away_for_a_while() -> None:
    experiments.restarted_postgres(100, 2.0)


@needs_sink
def test_the_reply_to_the_final_dot_is_lost() -> None:
    experiments.lost_replies(10)


@needs_sink
def test_tarpits_and_a_dead_domain_delay_nobody_else() -> None:
    figures = experiments.tarpits(100, 2000, 60)
    ratio, during = figures.notes["ratio"], figures.notes["healthy p95 ms"]
    assert ratio <= 2.0 or during < 100, figures.notes  # type: ignore[operator]


@needs_sink
def test_storms_of_refusals_are_met_by_the_schedule() -> None:
    experiments.refusals(60, 8.0)


def test_dns_that_fails() -> None:
    experiments.bad_dns(4)


def test_a_process_that_is_stopped_and_continued() -> None:
    experiments.stopped_process(100, 60.0)
