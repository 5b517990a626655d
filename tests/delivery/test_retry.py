"""When the next attempt starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.retry import Schedule, before_expiry, hold_seconds

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule()
randoms = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 40)


def minutes(tries: int, random: float = 0.5, *, greylisted: bool = False) -> float:
    return (SCHEDULE.next_attempt(tries, NOW, lambda: random, greylisted=greylisted) - NOW).total_seconds() / 60


def test_the_default_schedule() -> None:
    assert [minutes(tries) for tries in range(1, 10)] == [1, 5, 15, 30, 60, 120, 240, 240, 240]


def test_the_first_retry_after_greylisting_waits_five_minutes() -> None:
    assert minutes(1, 0.0, greylisted=True) == 5
    assert 5 <= minutes(1, 0.99, greylisted=True) <= 6
    assert minutes(3, greylisted=True) == 15


@given(attempts, randoms, st.booleans())
def test_retries_are_in_the_future_and_within_the_jitter(tries: int, random: float, greylisted: bool) -> None:
    base, found = minutes(tries), minutes(tries, random, greylisted=greylisted)
    assert found > 0
    assert base * 0.8 - 0.01 <= found <= max(base, 5 if greylisted else 0) * 1.2 + 0.01


@given(attempts, randoms)
def test_a_retry_without_a_reply_waits_five_minutes(tries: int, random: float) -> None:
    assert SCHEDULE.after_silence(tries, NOW, lambda: random) - NOW >= timedelta(minutes=5)


@given(attempts, randoms, st.integers(-3600, 7 * 86400))
def test_the_last_attempt_is_before_the_expiry_and_not_too_early(tries: int, random: float, left: int) -> None:
    wanted = SCHEDULE.next_attempt(tries, NOW, lambda: random)
    expires = NOW + timedelta(seconds=left)
    when = before_expiry(wanted, NOW, expires)
    if when is not None:
        assert NOW < when < expires
        assert when <= wanted
        assert when - NOW >= min(wanted - NOW, timedelta(seconds=60)) / 2
    else:
        assert wanted >= expires


def test_a_last_attempt_shortly_before_the_expiry() -> None:
    expires = NOW + timedelta(minutes=10)
    assert before_expiry(NOW + timedelta(minutes=15), NOW, expires) == expires - timedelta(seconds=30)
    assert before_expiry(NOW + timedelta(hours=4), NOW, expires) is None


@given(st.integers(1, 1000), randoms)
def test_holds_grow_with_failures_up_to_a_limit(failures: int, random: float) -> None:
    seconds = hold_seconds(failures, 60, 1800, lambda: random)
    assert 48 <= seconds <= 1800
    assert hold_seconds(failures + 1, 60, 1800, lambda: 0.5) >= hold_seconds(failures, 60, 1800, lambda: 0.5)
    assert hold_seconds(1000, 60, 1800, lambda: 0.9) < 1800  # they vary at the limit, too
