"""Plans: how many recipients an account may send to per month and per day, and how many contacts it may have. Pure.

The plans themselves are in plans.toml. accounts/quota.py counts what an account has used.
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
    """Which plans there are."""

    file: Path | None = setting(
        None, "A file with your own plans. If not set, the built-in plans apply.", example="/etc/mailsvc/plans.toml"
    )
    default: str | None = setting(None, "The plan of accounts without one. If not set, they have no quota.", example="free")


@attrs.frozen
class Plan:
    """`contacts`: how many an account may have when it sends a broadcast; None: no limit.

    `price` is None if it is not decided; `stated` has the published prices that contradict each other.
    """

    name: str
    emails: int
    daily: int | None = None
    contacts: int | None = None
    price: float | None = None
    stated: tuple[float, ...] = ()

    @property
    def limits(self) -> dict[Period, int]:
        """The number of recipients, by period."""
        found: dict[Period, int] = {"month": self.emails}
        return found if self.daily is None else {"day": self.daily, **found}


@attrs.frozen
class Exhausted:
    """A request for `wanted` recipients that exceeds the quota. `used` of `limit` are used; the count resets at `resets_at`.

    `ramp`: the limit is that of a new account, not of its plan.
    """

    period: Period
    wanted: int
    used: int
    limit: int
    resets_at: datetime
    ramp: bool = False

    @property
    def too_large(self) -> bool:
        """Whether the request has more recipients than a whole period allows, so that waiting does not help."""
        return self.wanted > self.limit > 0 and not self.ramp

    @property
    def message(self) -> str:
        """The error message. Unless the request is too large, it begins with a sentence that client libraries know."""
        if self.too_large:
            allowed = f"your quota allows {self.limit} in a {self.period}. Split it into several requests."
            return f"This request has {self.wanted} recipients, but {allowed}"
        new = " The quota of a new account grows as it sends mail that people want." if self.ramp else ""
        left = f"This request has {self.wanted} recipients, but only {self.limit - self.used} of {self.limit} are left"
        return f"You have exceeded your {WORDS[self.period]} email sending quota. {left} until {self.resets_at:%Y-%m-%d %H:%M} UTC.{new}"


def begins(period: Period, now: datetime) -> date:
    """Returns the first day of the current period, in UTC."""
    today = now.astimezone(UTC).date()
    return today if period == "day" else today.replace(day=1)


def ends(period: Period, now: datetime) -> datetime:
    """Returns when the current period ends."""
    first = begins(period, now)
    after = first + timedelta(days=1) if period == "day" else (first + timedelta(days=31)).replace(day=1)
    return datetime(after.year, after.month, after.day, tzinfo=UTC)


def load(settings: Plans) -> dict[str, Plan]:
    """Returns the plans by name. Raises SettingsError."""
    if settings.file is None:
        found = read(tomllib.loads((resources.files("mailsvc.settings") / "plans.toml").read_text("utf-8")))
    else:
        try:
            found = read(reader.read(settings.file))
        except SettingsError as error:
            raise SettingsError(f"The setting plans.file: {error}") from None
    if settings.default is not None and settings.default not in found:
        raise SettingsError(f"The setting plans.default is {settings.default!r}; the plans are: {', '.join(found)}.")
    return found


def read(given: Mapping[str, Any]) -> dict[str, Plan]:
    """Reads the plans from parsed TOML."""
    return {name: _plan(name, table) for name, table in given.items()}


def _plan(name: str, table: Any) -> Plan:
    known = {"emails", "daily", "contacts", "price", "stated"}
    if not isinstance(table, dict) or not set(table) <= known:
        raise SettingsError(f"The plan {name} must be a table with the keys {', '.join(sorted(known))}.")
    for key in ("emails", "daily", "contacts"):
        if (key in table or key == "emails") and (type(table.get(key)) is not int or table[key] < 1):
            raise SettingsError(f"The plan {name} has an invalid or missing `{key}`; expected a whole number of at least 1.")
    prices = [table["price"]] if "price" in table else table.get("stated", [])
    if not isinstance(prices, list) or any(type(price) not in (int, float) or price < 0 for price in prices):
        raise SettingsError(f"The plan {name} has an invalid price; expected a number of at least 0.")
    return Plan(
        name, table["emails"], table.get("daily"), table.get("contacts"), table.get("price"), tuple(table.get("stated", ()))
    )  # fmt: skip
