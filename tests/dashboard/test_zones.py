"""Time zones that people can choose, and the times that they enter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mailsvc.dashboard.zones import BadTime, by_area, entered, field, named, names, upcoming

BERLIN = ZoneInfo("Europe/Berlin")


def test_zones_are_places_and_utc() -> None:
    assert {"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"} <= names()
    assert not {"", "Etc/GMT+1", "posixrules", "localtime", "Factory", "Europe"} & names()
    assert "Asia/Tokyo" in by_area()["Asia"] and named("Nowhere/Else").key == "UTC"


def test_an_entered_time_is_of_the_zone() -> None:
    assert entered("2026-07-01T10:00", BERLIN) == datetime(2026, 7, 1, 8, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "2026-03-29T02:30", "0001-01-01T00:00"])
def test_an_impossible_time_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        entered(text, BERLIN)


def test_of_two_equal_times_the_second_is_meant_if_the_first_has_passed() -> None:
    """On 2026-10-25, clocks in Berlin show 2:30 at 0:30 and at 1:30 UTC."""
    first, second = (datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1))
    for now, expected in ((first - timedelta(minutes=1), first), (first, second), (second - timedelta(minutes=1), second)):
        assert upcoming("2026-10-25T02:30", BERLIN, now, timedelta(days=30)) == expected
    with pytest.raises(BadTime, match="has passed"):
        upcoming("2026-10-25T02:30", BERLIN, second, timedelta(days=30))
    now = first - timedelta(days=1)
    for shown in (first, second):  # in a form that is sent unchanged
        assert upcoming(field(shown, BERLIN), BERLIN, now, timedelta(days=30), shown) == shown
    assert upcoming("2026-10-25T02:29", BERLIN, now, timedelta(days=30), second) == first - timedelta(minutes=1)
