"""`GET /emails/metrics`: what became of the account's mail, over a time, in periods of any zone. Pure but for the one look-up.

Everything counts recipients. What comes from the hourly counts has their grain: a period that begins within an hour (zones that are
half an hour off) begins at the next whole one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs

from mailsvc.http import parameters
from mailsvc.http.describe import ID, ISO_TIME, TEXT, Parameter, array, const, obj
from mailsvc.http.fields import Schema
from mailsvc.http.problem import invalid
from mailsvc.http.request import Request
from mailsvc.http.resources.email_views import iso
from mailsvc.store.events.rollups import Count, Unit, Wanted

PERIODS_MAX = 10_000
IDS_MAX = 100
DEFAULT = timedelta(days=7)
UNITS: Mapping[str, tuple[Unit, timedelta]] = {
    "hourly": ("hour", timedelta(hours=1)),
    "daily": ("day", timedelta(days=1)),
    "weekly": ("week", timedelta(days=7)),
    "monthly": ("month", timedelta(days=28)),
}
DIMENSIONS = ("period", "domain", "email", "broadcast")

# metric → the counted types that it is the sum of. `opened` and what follows from it stay 0 as long as nothing is tracked.
SUMS: Mapping[str, tuple[str, ...]] = {
    "received": ("email.received",),
    "delivered": ("email.delivered",),
    "complained": ("email.complained",),
    "suppressed": ("email.suppressed",),
    "bounced": ("email.bounced.transient", "email.bounced.permanent", "email.bounced.undetermined"),
    "bounced_transient": ("email.bounced.transient",),
    "bounced_permanent": ("email.bounced.permanent",),
    "bounced_undetermined": ("email.bounced.undetermined",),
    "opened": ("email.opened",),
    "clicked": ("email.clicked",),
    "unsubscribed": (),
    "delivery_delayed": ("email.delivery_delayed",),
    "failed": ("email.failed",),
    "sent": ("email.sent",),
    "unique_opened": (),
    "unique_clicked": (),
}
# rate → of which, in which; in percent
RATES: Mapping[str, tuple[str, str]] = {
    "delivery_rate": ("delivered", "sent"),
    "open_rate": ("unique_opened", "delivered"),
    "click_rate": ("unique_clicked", "delivered"),
    "bounce_rate": ("bounced", "sent"),
    "complaint_rate": ("complained", "delivered"),
    "unsubscribe_rate": ("unsubscribed", "delivered"),
}
METRICS = (*SUMS, *RATES)
TYPES = sorted({name for types in SUMS.values() for name in types})

_MANY = "Several: apart by commas, or the parameter again."
PARAMETERS = (
    Parameter("start_date", TEXT, "A date or a time, ISO 8601; seven days ago when left out."),
    Parameter("end_date", TEXT, "A date, which is then included, or a time; now when left out or in the future."),
    Parameter("timezone", TEXT, "Where days begin: a name of the IANA database, `UTC` when left out."),
    Parameter("granularity", {"enum": list(UNITS)}, "The length of a period; `daily` when left out. At most 10,000 periods."),
    Parameter("metrics", TEXT, f"All when left out. {_MANY}"),
    Parameter("dimensions", TEXT, f"By what they are told apart: period, domain, email (with `email_id`), broadcast. {_MANY}"),
    Parameter("domain_id", TEXT, f"Of these domains alone. {_MANY}"),
    Parameter("email_id", TEXT, f"Of these emails alone. {_MANY}"),
    Parameter("broadcast_id", TEXT, f"Of these broadcasts alone; there are none yet. {_MANY}"),
)
_NUMBER: Schema = {"type": "number", "minimum": 0}
_ROW: Schema = {
    "type": "object",
    "properties": {
        "period": TEXT, "domain_id": ID, "domain_name": TEXT, "email_id": ID, "broadcast_id": ID, "broadcast_name": TEXT,
        **dict.fromkeys(METRICS, _NUMBER),
    },
    "additionalProperties": False,
}  # fmt: skip
ANSWER = obj(
    {
        "object": const("metrics"),
        "start_date": ISO_TIME,
        "end_date": ISO_TIME,
        "metrics": array({"enum": list(METRICS)}),
        "dimensions": array({"enum": list(DIMENSIONS)}),
        "granularity": {"enum": list(UNITS)},
        "totals": {"type": "object", "properties": dict.fromkeys(METRICS, _NUMBER), "additionalProperties": False},
        "data": array(_ROW),
    },
    optional=["data"],
)


@attrs.frozen
class Question:
    """A request for metrics, understood."""

    wanted: Wanted
    zone: ZoneInfo
    granularity: Literal["hourly", "daily", "weekly", "monthly"]
    metrics: Sequence[str]
    dimensions: Sequence[str]
    broadcasts: bool  # of some broadcasts alone


def asked(request: Request, now: datetime) -> Question:
    zone = _zone(parameters.one(request, "timezone") or "UTC")
    granularity: Any = parameters.one(request, "granularity") or "daily"
    if granularity not in UNITS:
        raise invalid(f"The `granularity` parameter must be one of: {', '.join(UNITS)}.")
    end = min(_moment(request, "end_date", zone, now, upto=True), now)
    start = _moment(request, "start_date", zone, end - DEFAULT)
    if start >= end:
        raise invalid("The `start_date` parameter must lie before `end_date` and before now.")
    unit, length = UNITS[granularity]
    if (end - start) / length > PERIODS_MAX:
        raise invalid(f"There would be more than {PERIODS_MAX} periods; choose another `granularity` or a shorter time.")
    metrics = _words(request, "metrics", METRICS) or list(METRICS)
    dimensions = _words(request, "dimensions", DIMENSIONS)
    domains, emails, broadcasts = (_ids(request, name) for name in ("domain_id", "email_id", "broadcast_id"))
    if "email" in dimensions and not emails:
        raise invalid("The dimension `email` needs the `email_id` parameter.")
    if "email" in dimensions and "broadcast" in dimensions:
        raise invalid("The dimensions `email` and `broadcast` exclude each other.")
    wanted = Wanted(
        start,
        end,
        unit,
        zone.key,
        TYPES,
        "period" in dimensions,
        "domain" in dimensions,
        "email" in dimensions,
        domains or None,
        emails or None,
    )
    return Question(wanted, zone, granularity, metrics, dimensions, bool(broadcasts) or "broadcast" in dimensions)


def answer(question: Question, counts: Sequence[Count], names: Mapping[UUID, str]) -> dict[str, object]:
    """`names`: the account's domains."""
    wanted = question.wanted
    told: dict[str, object] = {
        "object": "metrics",
        "start_date": iso(wanted.start),
        "end_date": iso(wanted.end),
        "metrics": list(question.metrics),
        "dimensions": list(question.dimensions),
        "granularity": question.granularity,
        "totals": _figures(question.metrics, _summed(counts)),
    }
    return {**told, "data": _rows(question, counts, names)} if question.dimensions else told


def _rows(question: Question, counts: Sequence[Count], names: Mapping[UUID, str]) -> list[dict[str, object]]:
    groups: dict[tuple[Any, ...], list[Count]] = {}
    if tuple(question.dimensions) == ("period",):
        groups = {(period, None, None): [] for period in _periods(question)}
    for count in counts:
        groups.setdefault((count.hour or count.day, count.domain_id, count.email_id), []).append(count)
    rows = []
    for (period, domain_id, email_id), group in groups.items():
        row: dict[str, object] = {}
        if period is not None:
            row["period"] = _period(period, question.zone)
        if domain_id is not None:
            row |= {"domain_id": str(domain_id), **({"domain_name": names[domain_id]} if domain_id in names else {})}
        if email_id is not None:
            row["email_id"] = str(email_id)
        rows.append(row | _figures(question.metrics, _summed(group)))
    return rows


def _summed(counts: Sequence[Count]) -> dict[str, int]:
    by_type: dict[str, int] = {}
    for count in counts:
        by_type[count.type] = by_type.get(count.type, 0) + count.count
    return {metric: sum(by_type.get(name, 0) for name in types) for metric, types in SUMS.items()}


def _figures(metrics: Sequence[str], sums: Mapping[str, int]) -> dict[str, float]:
    return {metric: sums[metric] if metric in sums else _rate(*(sums[name] for name in RATES[metric])) for metric in metrics}


def _rate(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


# Periods


def _periods(question: Question) -> Iterator[datetime | date]:
    """All of them, so that those without mail are there too."""
    wanted, zone = question.wanted, question.zone
    first = wanted.start.replace(minute=0, second=0, microsecond=0)
    if wanted.unit == "hour":
        while first < wanted.end:
            yield first
            first += timedelta(hours=1)
        return
    day = _begin(first.astimezone(zone).date(), wanted.unit)
    last = (wanted.end - timedelta(microseconds=1)).replace(minute=0, second=0, microsecond=0).astimezone(zone).date()
    while day <= last:
        yield day
        day = _begin(day + timedelta(days={"day": 1, "week": 7}.get(wanted.unit, 31)), wanted.unit)


def _begin(day: date, unit: Unit) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day


def _period(period: datetime | date, zone: tzinfo) -> str:
    return period.astimezone(zone).isoformat() if isinstance(period, datetime) else period.isoformat()


# Parameters


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise invalid("The `timezone` parameter must be a name of the IANA time zone database, such as `Europe/Vienna`.") from None


def _moment(request: Request, name: str, zone: tzinfo, default: datetime, *, upto: bool = False) -> datetime:
    text = parameters.one(request, name).replace(" ", "+")  # a plus that was not encoded
    if not text:
        return default
    try:
        if len(text) == 10:
            day = date.fromisoformat(text) + timedelta(days=1 if upto else 0)
            return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid(f"The `{name}` parameter must be a date or a time in ISO 8601.") from None


def _words(request: Request, name: str, allowed: Sequence[str]) -> list[str]:
    words = list(dict.fromkeys(parameters.several(request, name)))
    for word in words:
        if word not in allowed:
            raise invalid(f"The `{name}` parameter may have: {', '.join(allowed)}.")
    return words


def _ids(request: Request, name: str) -> list[UUID]:
    ids = [parameters.uuid(text, name) for text in parameters.several(request, name)]
    if len(ids) > IDS_MAX:
        raise invalid(f"The `{name}` parameter may have at most {IDS_MAX} ids.")
    return ids
