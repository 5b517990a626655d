"""Times as people write them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.http.resources import schedule

NOW = datetime(2026, 11, 21, 0, 15, tzinfo=UTC)  # a Saturday
AHEAD = timedelta(days=30)


def read(text: str, now: datetime = NOW) -> datetime | None:
    return schedule.read(text, now, AHEAD, natural=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in 1 min", "2026-11-21T00:16"),
        ("in 30 minutes", "2026-11-21T00:45"),
        ("in an hour", "2026-11-21T01:15"),
        ("In 1 hour and 30 minutes", "2026-11-21T01:45"),
        ("in 2 days", "2026-11-23T00:15"),
        ("2 hours from now", "2026-11-21T02:15"),
        ("tomorrow at 9am", "2026-11-22T09:00"),
        ("tomorrow", "2026-11-22T00:00"),
        ("tomorrow at noon", "2026-11-22T12:00"),
        ("today at 5pm", "2026-11-21T17:00"),
        ("at 5 p.m.", "2026-11-21T17:00"),
        ("12am", "2026-11-22T00:00"),
        ("9am tomorrow", "2026-11-22T09:00"),
        ("Friday at 3pm ET", "2026-11-27T20:00"),
        ("next monday at 10:00", "2026-11-23T10:00"),
        ("on Monday, at 10:30 pm", "2026-11-23T22:30"),
        ("saturday at 11pm", "2026-11-21T23:00"),
        ("11pm this Saturday", "2026-11-21T23:00"),
        ("Friday at 9pm ET", "2026-11-21T02:00"),  # it is still Friday there
        ("saturday", "2026-11-28T00:00"),
        ("Saturday at 0:10", "2026-11-28T00:10"),
        ("next saturday at 11pm", "2026-11-28T23:00"),
        ("November 25 at 5pm PST", "2026-11-26T01:00"),
        ("Dec 3rd 2026 3:30 pm EST", "2026-12-03T20:30"),
        ("December 3rd, 2026 at 9:00 AM", "2026-12-03T09:00"),
        ("9am on 3 December, 2026", "2026-12-03T09:00"),
        ("thurs 9am", "2026-11-26T09:00"),
        ("9am next Thurs ET", "2026-11-26T14:00"),
        ("2026-11-25 at 17:00 CET", "2026-11-25T16:00"),
        ("2026-11-22T10:00:00Z", "2026-11-22T10:00"),
        ("2026-11-22T10:00:00.000+02:00", "2026-11-22T08:00"),
        ("2026-11-22T10:00", "2026-11-22T10:00"),
        ("2026-11-22t10:00:00z", "2026-11-22T10:00"),
        ("2026-11-22 10:00:00+00", "2026-11-22T10:00"),
    ],
)
def test_schedule_reads_iso_and_english(text: str, expected: str) -> None:
    assert read(text) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["now", "in 0 min", "2026-11-21T00:15:00Z", "2026-11-21T00:12:00Z"])
def test_schedule_treats_now_and_just_before_as_now(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "hello", "a", "in", "12", "May", "tomorrow at 25:00", "tomorrow 9", "tomorrow at 9am America/New_York", "half past nine",
        "in 1 min please", "yesterday", "2026-11-22T25:00:00Z", "2026-02-30", "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z",
        "in 5 weeks", "in 999999 weeks", "february 30 at 9am", "january 1 0001 ET", "x" * 65, "99999-01-01", "2026-11-22T10:00:00+99:00",
        "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    ],
)  # fmt: skip
def test_schedule_refuses_what_it_does_not_understand(text: str) -> None:
    with pytest.raises(schedule.Unreadable):
        read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-11-31T10:00:00Z", "is not an existing time: the calendar has no 2026-11-31. Check the year, the month and the day"),
        ("February 30 at 9am", "is not an existing time: the calendar has no february 30. Check the year, the month and the day"),
        ("2026-11-22T24:30:00Z", "hours go from 00 to 23, minutes and seconds from 00 to 59, and offsets to 23:59"),
        ("in 999999 weeks", "is too far in the future"),
        ("nov 19", "is in the past: it means 2026-11-19 00:00 UTC"),
        ("2027-01-01T00:00:00+01:00", "must be at most 30 days in the future, but means 2026-12-31 23:00 UTC"),
        ("22.11.2026 10:00", 'such as "2026-11-22T00:00:00Z", or an English one, such as "in 1 min" or "tomorrow at 9am"'),
    ],
)  # fmt: skip
def test_schedule_says_what_is_wrong_and_what_to_write_instead(text: str, why: str) -> None:
    with pytest.raises(schedule.Unreadable) as refused:
        read(text)
    assert str(refused.value).endswith(why)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nov 21", "is in the past"), ("November 10 at 5am", "is in the past"), ("20th nov ET", "is in the past"),
        ("oct 20", "must be at most 30 days in the future"), ("nov 21 2027", "must be at most 30 days in the future"),
        ("nov 21 at 0:12", None), ("nov 20 at 7:12 pm EST", None),
    ],
)  # fmt: skip
def test_schedule_takes_a_date_without_a_year_for_the_last_one_if_it_was_recent(text: str, expected: str | None) -> None:
    """`None`: sent now, because clocks differ."""
    if expected is None:
        assert read(text) is None
        return
    with pytest.raises(schedule.Unreadable, match=expected):
        read(text)


def test_schedule_follows_american_daylight_saving_time() -> None:
    july = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert read("tomorrow at 3pm ET", july) == datetime(2026, 7, 2, 19, tzinfo=UTC)
    assert read("tomorrow at 3pm EST", july) == datetime(2026, 7, 2, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", ["today at 1:30am ET", "1:30am ET", "nov 1 at 1:30am ET", "sunday at 1:30am ET"])
def test_schedule_takes_the_second_of_two_equal_times_if_the_first_has_passed(text: str) -> None:
    """On 2026-11-01, clocks in New York show 1:30 at 5:30 and at 6:30 UTC."""
    first, second = (datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6))
    assert read(text, datetime(2026, 11, 1, 5, 15, tzinfo=UTC)) == first
    assert read(text, datetime(2026, 11, 1, 6, 15, tzinfo=UTC)) == second


@pytest.mark.parametrize("text", ["tomorrow at 2:30am ET", "2027-03-14 at 2:59 am ET", "sunday at 2am ET"])
def test_schedule_refuses_a_time_that_clocks_skip(text: str) -> None:
    """On 2027-03-14, clocks in New York show 3:00 after 1:59."""
    with pytest.raises(schedule.Unreadable, match=r"clocks skip it, .* Use 2027-03-14T03:.*-04:00, for example"):
        read(text, datetime(2027, 3, 13, 15, tzinfo=UTC))
    assert read("tomorrow at 3am ET", datetime(2027, 3, 13, 15, tzinfo=UTC)) == datetime(2027, 3, 14, 7, tzinfo=UTC)
    assert read("sunday at 2:30am ET", datetime(2027, 3, 7, 6, tzinfo=UTC)) == datetime(2027, 3, 7, 7, 30, tzinfo=UTC)  # the week before


def test_schedule_takes_the_day_in_the_named_zone() -> None:
    """At 00:15 UTC it is still the day before in New York."""
    assert read("tomorrow at 9am ET") == datetime(2026, 11, 21, 14, tzinfo=UTC)


def test_schedule_leaves_english_to_a_thread() -> None:
    with pytest.raises(schedule.Natural):
        schedule.read("in 1 min", NOW, AHEAD, natural=False)
    assert schedule.read("2026-11-22T10:00:00Z", NOW, AHEAD, natural=False) is not None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=70) | st.text(alphabet="0123456789-:TZ+. aminwekdtorhuy", max_size=40))
def test_schedule_of_any_text_is_a_time_or_unreadable(text: str) -> None:
    try:
        at = read(text)
    except schedule.Unreadable:
        return
    assert at is None or NOW < at <= NOW + AHEAD
