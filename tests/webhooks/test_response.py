"""What an answer comes to, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.webhooks.response import Verdict, judge
from mailsvc.webhooks.sender import Limits

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCHEDULE = Limits().schedule


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_success(status: int) -> None:
    assert judge(status, None, 7, NOW, SCHEDULE) == Verdict("success")


@pytest.mark.parametrize("status", [0, 100, 199, 301, 302, 307, 308, 400, 401, 404, 429, 500, 503, 599])
def test_everything_else_is_tried_again(status: int) -> None:
    assert judge(status, None, 0, NOW, SCHEDULE) == Verdict("retry", after(5))


def test_the_schedule() -> None:
    waits = [judge(500, None, tries, NOW, SCHEDULE).next_at for tries in range(8)]
    assert waits == [*(after(seconds) for seconds in (5, 300, 1800, 7200, 18000, 36000, 36000)), None]
    assert judge(500, None, 7, NOW, SCHEDULE).outcome == "failed"


def test_gone() -> None:
    assert judge(410, None, 0, NOW, SCHEDULE) == Verdict("failed", why="It responded with 410 Gone.")


@pytest.mark.parametrize(
    ("status", "value", "seconds"),
    [
        (429, "120", 120),
        (503, " 7 ", 7),
        (503, "Fri, 02 Jan 2026 03:14:05 GMT", 600),
        (429, "99999999999999", 86400),
        (429, "Fri, 02 Jan 2099 03:14:05 GMT", 86400),
        (429, "0", None),
        (429, "-5", None),
        (429, "soon", None),
        (429, "Fri, 02 Jan 99999999999999999999 03:14:05 GMT", None),
        (429, "Thu, 01 Jan 1970 00:00:00 GMT", None),
        (404, "120", None),
        (429, None, None),
    ],
)
def test_retry_after(status: int, value: str | None, seconds: int | None) -> None:
    verdict = judge(status, value, 0, NOW, SCHEDULE)
    assert verdict.hold_until == (None if seconds is None else after(seconds))
    assert verdict.next_at == after(max(5, seconds or 0))


@given(st.integers(0, 999), st.text(max_size=40) | st.none(), st.integers(0, 20))
def test_nothing_confuses_it(status: int, value: str | None, tries: int) -> None:
    verdict = judge(status, value, tries, NOW, SCHEDULE)
    assert (verdict.next_at is not None) == (verdict.outcome == "retry")
    if verdict.next_at is not None:
        assert after(5) <= verdict.next_at <= after(86400)
