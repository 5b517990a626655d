"""How a provider's rate follows its replies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.admission.throttling import RECOVERY, slower, throttle
from mailsvc.store.queue.holds import Slowdown

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def throttled(known: Slowdown | None, now: datetime, per_minute: float = 6.0) -> Slowdown:
    found = slower(known, "big", per_minute, "it says so (rule big-1)", 3600.0, now)
    assert found is not None
    return found


def rate(slowdown: Slowdown, now: datetime) -> float | None:
    found = throttle(slowdown, now)
    return None if found is None else found.per_minute


def test_after_a_throttling_reply_the_rate_doubles_with_each_quiet_hour() -> None:
    slowdown = throttled(None, NOW)
    assert slowdown.reason == "big gets 6 emails a minute because it says so (rule big-1)."
    assert [rate(slowdown, NOW + hours * HOUR) for hours in range(5)] == [6.0, 12.0, 24.0, 48.0, 96.0]
    assert [rate(slowdown, NOW + minutes * timedelta(minutes=1)) for minutes in (59, 61, 119)] == [6.0, 12.0, 12.0]
    assert rate(slowdown, NOW + HOUR + RECOVERY) is None


def test_one_connection_while_slowed_and_more_as_it_recovers() -> None:
    slowdown = throttled(None, NOW)
    found = [throttle(slowdown, NOW + hours * HOUR) for hours in range(4)]
    assert [each and (each.connections, each.recovering) for each in found] == [(1, False), (2, True), (4, True), (8, True)]


def test_each_further_throttling_halves_the_rate() -> None:
    first = throttled(None, NOW)
    second = throttled(first, NOW + HOUR / 2)
    assert (second.per_minute, second.until) == (3.0, NOW + 1.5 * HOUR)
    assert "gets 3 emails a minute" in second.reason
    third = throttled(second, NOW + HOUR)
    assert third.per_minute == 1.5
    assert throttled(throttled(third, NOW + 1.5 * HOUR), NOW + 2 * HOUR).per_minute == 1.0, "never below one a minute"


def test_replies_of_the_same_moment_count_once() -> None:
    first = throttled(None, NOW)
    assert slower(first, "big", 6.0, "it says so", 3600.0, NOW + timedelta(minutes=5)) is None
    assert slower(first, "big", 6.0, "it says so", 3600.0, NOW + timedelta(minutes=7)) is not None
    assert throttled(first, NOW, per_minute=2.0).per_minute == 2.0, "a stricter rule counts at once"


def test_throttled_while_it_recovers_a_provider_begins_at_the_rules_rate_again() -> None:
    first = throttled(None, NOW)
    assert throttled(first, NOW + 4 * HOUR).per_minute == 6.0
    assert throttled(first, NOW + HOUR, per_minute=60.0).per_minute == 6.0, "half of 12 is less than 60"


def test_after_a_full_recovery_nothing_is_remembered() -> None:
    first = throttled(throttled(None, NOW), NOW + HOUR / 2)
    assert throttled(first, first.until + RECOVERY).per_minute == 6.0


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.sampled_from([1.0, 6.0, 60.0]), st.sampled_from([600.0, 3600.0, 7200.0])), max_size=20)
)
def test_a_throttling_reply_never_makes_it_faster(replies: list[tuple[int, float, float]]) -> None:
    known, now = None, NOW
    for pause, per_minute, seconds in replies:
        now += timedelta(seconds=pause)
        before = throttle(known, now)
        known = slower(known, "big", per_minute, "it says so", seconds, now) or known
        after = throttle(known, now)
        assert after is not None
        assert 1.0 <= after.per_minute <= per_minute
        assert before is None or after.per_minute <= before.per_minute
