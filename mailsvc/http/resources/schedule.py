"""When to send an email: ISO 8601, or a few English forms. Text that isn't understood completely is refused, never guessed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from threading import Lock
from zoneinfo import ZoneInfo

LENGTH_MAX = 64
LATE = timedelta(minutes=5)  # a time this far in the past still means now, because clocks differ
RECENT = timedelta(days=30)  # a date without a year that was within this time means that day, not the one in a year

_ISO = re.compile(r"\d{4}-?(\d\d|W\d\d)")
_CALENDAR = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_CLOCK = re.compile(r"[t ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:z|[+-]\d\d:?\d\d)?", re.ASCII)
_UNIT = r"(?:sec(?:ond)?s?|min(?:ute)?s?|h(?:ou)?rs?|days?|weeks?)"
_AMOUNT = rf"(?:an?|\d{{1,6}}(?:\.\d{{1,3}})?) {_UNIT}"
_WEEKDAY = r"(?:mon(?:day)?|tues?(?:day)?|wed(?:nesday)?|thu(?:rs(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_NUMBER = r"(?:[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?"
_DATE = rf"(?:{_MONTH} {_NUMBER}|{_NUMBER} {_MONTH})(?:,? \d{{4}})?|\d{{4}}-\d\d-\d\d"
_DAY = rf"(?:today|tomorrow|(?:next |this )?{_WEEKDAY}|{_DATE})"
_TIME = r"(?:(?:1[0-2]|0?[1-9])(?::[0-5]\d){0,2} ?[ap]m|(?:[01]?\d|2[0-3])(?::[0-5]\d){1,2}|noon|midnight)"

# Time zones as people write them in English. ET, CT, MT and PT follow daylight saving time.
_ZONES = {
    "utc": "UTC", "gmt": "UTC", "z": "UTC",
    "et": "America/New_York", "ct": "America/Chicago", "mt": "America/Denver", "pt": "America/Los_Angeles",
    "est": "Etc/GMT+5", "edt": "Etc/GMT+4", "cst": "Etc/GMT+6", "cdt": "Etc/GMT+5",
    "mst": "Etc/GMT+7", "mdt": "Etc/GMT+6", "pst": "Etc/GMT+8", "pdt": "Etc/GMT+7",
    "cet": "Etc/GMT-1", "cest": "Etc/GMT-2", "bst": "Etc/GMT-1",
}  # fmt: skip

_RELATIVE = re.compile(rf"(?:in )?({_AMOUNT}(?:(?: and|,)? {_AMOUNT}){{0,3}})(?: from now)?")
_ABSOLUTE = re.compile(
    rf"(?:(?:on )?(?P<day>{_DAY}),?(?: (?:at )?(?P<time>{_TIME}))?|(?:at )?(?P<only>{_TIME})(?:,? (?:on )?(?P<then>{_DAY}))?)"
    rf"(?: (?P<zone>{'|'.join(_ZONES)}))?"
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")  # how they begin, and nothing else does


_one_at_a_time = Lock()  # dateparser keeps state between calls, and this runs in threads


class Unreadable(ValueError):
    """Not a valid time. The message is the end of a sentence that begins with the field."""


class Natural(Exception):
    """Not ISO 8601: parsing English takes long and has to be done in a thread."""


def read(text: str, now: datetime, ahead: timedelta, *, natural: bool) -> datetime | None:
    """The time, or None if the email is sent at once. Raises Natural if `text` is not ISO 8601, unless `natural` is set."""
    if len(text) > LENGTH_MAX:
        raise Unreadable(f"must have at most {LENGTH_MAX} characters")
    at = _iso(text)
    if at is None:
        if not natural:
            raise Natural
        at = _english(" ".join(text.lower().replace(".m.", "m").replace(" a.m", " am").replace(" p.m", " pm").split()), now)
    if at > now + ahead:
        raise Unreadable(f"must be at most {ahead.days} days in the future, but means {at:%Y-%m-%d %H:%M} UTC")
    if at < now - LATE:
        raise Unreadable(f"is in the past: it means {at:%Y-%m-%d %H:%M} UTC")
    return at if at > now else None


def _iso(text: str) -> datetime | None:
    """ISO 8601. Without an offset it is UTC."""
    text = text.upper()  # 3339 §5.6: "t" and "z" can be in lower case
    if not _ISO.match(text):
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _english(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    zone: tzinfo = UTC
    day = ""
    found = _RELATIVE.fullmatch(text)
    if found is not None:
        plain = "in " + found[1].replace(",", " ")
    else:
        found = _ABSOLUTE.fullmatch(text)
        if found is None:
            raise Unreadable(_unknown(text, now))
        zone = ZoneInfo(_ZONES[found["zone"]]) if found["zone"] else UTC
        time = found["time"] or found["only"] or "00:00"
        day = (found["day"] or found["then"] or "").replace(",", "").removesuffix("rs")  # dateparser does not know "thurs"
        plain = " ".join(f"{day} {time.replace('midnight', '00:00').replace('noon', '12:00')}".removeprefix("this ").split())
    try:
        local = _understood(plain, now, zone)
    except (ValueError, OverflowError):
        raise Unreadable(_no_such_day(day) if day else "is too far in the future") from None
    local = _latest_year(day, local, now)
    if day.removeprefix("this ").startswith(_WEEKDAYS):
        today = local - timedelta(days=7)  # dateparser takes today's weekday for the one in a week
        local = today if _moment(today, now) > now else local
    at = _moment(local, now)
    if at.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        instead = at.astimezone(zone).isoformat()
        raise Unreadable(f"is not an existing time: clocks skip it, because summer time begins. Use {instead}, for example")
    return at


def _unknown(text: str, now: datetime) -> str:
    """Why a text is neither ISO 8601 nor one of the English forms."""
    date = _CALENDAR.match(text)
    if date is not None and not _is_day(*map(int, date.groups())):
        return _no_such_day(date[0])
    if date is not None and _CLOCK.fullmatch(text[date.end() :]):
        return "is not an existing time: hours go from 00 to 23, minutes and seconds from 00 to 59, and offsets to 23:59"
    iso = f"{now + timedelta(days=1):%Y-%m-%dT%H:00:00Z}"
    return f'must be an ISO 8601 time, such as "{iso}", or an English one, such as "in 1 min" or "tomorrow at 9am"'


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return bool(datetime(year, month, day, tzinfo=UTC))
    except ValueError:
        return False


def _no_such_day(day: str) -> str:
    return f"is not an existing time: the calendar has no {day}. Check the year, the month and the day"


def _latest_year(day: str, local: datetime, now: datetime) -> datetime:
    """A date without a year is in the past if it was recent: this morning is not in a year."""
    if not day or day[:4].isdigit() or day[-4:].isdigit() or (local.month, local.day) == (2, 29):
        return local
    before = local.replace(year=local.year - 1)
    return before if now - RECENT < _moment(before, now) else local


def _understood(plain: str, now: datetime, zone: tzinfo) -> datetime:
    """The time on clocks in `zone`."""
    import dateparser  # imported late: takes a quarter of a second, and most processes never need it

    local = now.astimezone(zone).replace(tzinfo=None)
    settings = {"PREFER_DATES_FROM": "future", "RELATIVE_BASE": local, "TIMEZONE": "UTC", "RETURN_AS_TIMEZONE_AWARE": False}
    with _one_at_a_time:
        at = dateparser.parse(plain, languages=["en"], settings=settings)
    if at is None:
        raise ValueError("no such time")
    return at.replace(tzinfo=zone)


def _moment(local: datetime, now: datetime) -> datetime:
    """In UTC. Of a time that clocks show twice, when summer time ends, the second if the first has passed."""
    try:
        first = local.replace(fold=0).astimezone(UTC)
        return first if first >= now - LATE else local.replace(fold=1).astimezone(UTC)
    except OverflowError:
        raise Unreadable("must be in the years 1 to 9999") from None
