"""Time zones that people can choose, and the times that they enter."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from mailsvc.dashboard.zones import BadTime, by_area, entered, named, names

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
