"""Plans: how many recipients an account may send to in a month and in a day, and when those begin and end. Pure.

What an account has left is counted by quota.py; the plans themselves are plans.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from mailsvc.settings import reader
from mailsvc.settings.reader import SettingsError, setting
from mailsvc.store.people.quota import Period

PERIODS: tuple[Period, ...] = ("day", "month")
WORDS: Mapping[Period, str] = {"day": "daily", "month": "monthly"}


@attrs.frozen
class Plans:
    """How much accounts may send."""

    file: Path | None = setting(None, "Plans of your own; left out: those in etc/plans.toml.", example="/etc/mailsvc/plans.toml")
    default: str | None = setting(None, "The plan of accounts that were given none; left out: they have no quota.", example="free")


@attrs.frozen
class Plan:
    """`price` None: none is set; `stated` has the figures that contradict each other."""

    name: str
    emails: int
    daily: int | None = None
    price: float | None = None
    stated: tuple[float, ...] = ()

    @property
    def limits(self) -> dict[Period, int]:
        """How many recipients, by period."""
        found: dict[Period, int] = {"month": self.emails}
        return found if self.daily is None else {"day": self.daily, **found}


@attrs.frozen
class Exhausted:
    """So many recipients do not fit into what is left of the period. `used` of `limit`; it counts anew at `resets_at`."""

    period: Period
    wanted: int
    used: int
    limit: int
    resets_at: datetime

    @property
    def message(self) -> str:
        """For people; its first sentence is the one that clients know."""
        left = f"{self.wanted} recipients do not fit into the {self.limit - self.used} of {self.limit} that are left"
        return f"You have exceeded your {WORDS[self.period]} email sending quota. {left} until {self.resets_at:%Y-%m-%d %H:%M} UTC."


def begins(period: Period, now: datetime) -> date:
    """The first day of the period, in UTC."""
    today = now.astimezone(UTC).date()
    return today if period == "day" else today.replace(day=1)


def ends(period: Period, now: datetime) -> datetime:
    """When it counts anew."""
    first = begins(period, now)
    after = first + timedelta(days=1) if period == "day" else (first + timedelta(days=31)).replace(day=1)
    return datetime(after.year, after.month, after.day, tzinfo=UTC)


def load(settings: Plans) -> dict[str, Plan]:
    """By name; a SettingsError when they are of no use."""
    if settings.file is None:
        found = read(tomllib.loads((resources.files("mailsvc.settings") / "plans.toml").read_text("utf-8")))
    else:
        try:
            found = read(reader.read(settings.file))
        except SettingsError as error:
            raise SettingsError(f"The setting plans.file names a file with plans. {error}") from None
    if settings.default is not None and settings.default not in found:
        raise SettingsError(f"The setting plans.default is {settings.default!r}; the plans are: {', '.join(found)}.")
    return found


def read(given: Mapping[str, Any]) -> dict[str, Plan]:
    """From TOML."""
    return {name: _plan(name, table) for name, table in given.items()}


def _plan(name: str, table: Any) -> Plan:
    known = {"emails", "daily", "price", "stated"}
    if not isinstance(table, dict) or not set(table) <= known:
        raise SettingsError(f"The plan {name} has to be a table of {', '.join(sorted(known))}.")
    for key in ("emails", "daily"):
        if (key in table or key == "emails") and (type(table.get(key)) is not int or table[key] < 1):
            raise SettingsError(f"The plan {name} has no good `{key}`; expected a whole number from 1 on.")
    prices = [table["price"]] if "price" in table else table.get("stated", [])
    if not isinstance(prices, list) or any(type(price) not in (int, float) or price < 0 for price in prices):
        raise SettingsError(f"The plan {name} has no good price; expected numbers from 0 on.")
    return Plan(name, table["emails"], table.get("daily"), table.get("price"), tuple(table.get("stated", ())))
