"""Time zones: which ones a person can choose, and times as clocks in them show them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

AREAS = ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")


class BadTime(ValueError):
    """A time that somebody entered cannot be used. The text is a sentence for them."""


@cache
def names() -> frozenset[str]:
    """The zones of places, and UTC: not the names that only tell how far a clock differs."""
    return frozenset(name for name in available_timezones() if name == "UTC" or name.partition("/")[0] in AREAS)


@cache
def by_area() -> Mapping[str, Sequence[str]]:
    """The zones of places by continent or ocean, for a list to choose from."""
    return {area: sorted(name for name in names() if name.startswith(f"{area}/")) for area in AREAS}


def named(name: str) -> ZoneInfo:
    """The zone with this name, or UTC if there is none."""
    return ZoneInfo(name if name in names() else "UTC")


def entered(text: str, zone: ZoneInfo, fold: int = 0) -> datetime:
    """The moment at which a clock in `zone` shows what somebody entered, in UTC. `fold` 1: for the last time. Raises BadTime."""
    try:
        local = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)
        at = local.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadTime("Enter a valid date and time.") from None
    if at.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise BadTime(f"Clocks in {zone.key} skip this time. Choose another one.")
    return at


def field(at: datetime, zone: ZoneInfo) -> str:
    """The moment as a form shows it."""
    return at.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


def upcoming(text: str, zone: ZoneInfo, now: datetime, ahead: timedelta, shown: datetime | None = None) -> datetime:
    """The same for something to be sent then, at most `ahead` from now. Raises BadTime.

    `shown`: the moment in the form before somebody changed it. What they leave unchanged means it, although clocks may show it twice.
    """
    at = shown if shown is not None and text == field(shown, zone) else entered(text, zone)
    if at <= now:
        at = entered(text, zone, fold=1)  # clocks show an hour twice when summer time ends
    if at <= now:
        raise BadTime(f"This time has passed in {zone.key}. Choose a later one.")
    if at > now + ahead:
        raise BadTime(f"Choose a time within the next {ahead.days} days.")
    return at
