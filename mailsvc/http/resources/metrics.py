"""The parameters and the response of `GET /emails/metrics`: counts of recipients over a period of time. Pure.

Counts are kept by the hour of UTC. In time zones that are half an hour off, a period begins at the next whole hour.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs

from mailsvc.clock import iso_time
from mailsvc.http import parameters
from mailsvc.http.fields import SOME_ID
from mailsvc.http.operations import Parameter, one_of
from mailsvc.http.problem import invalid
from mailsvc.http.request import Request
from mailsvc.http.views import Value, View, choice, const, free, iso, many, number, one, optional, text, uuid
from mailsvc.store.events.rollups import Count, Unit, Wanted, first_hour

PERIODS_MAX = 10_000
COUNTS_MAX = 200_000  # that an answer is made of: enough for each type in each period, and some 60 MB of memory
COUNT_BYTES = 300  # of memory for each of them, with its part of the answer
GROUPS = 100  # domains or broadcasts that are expected in a period
LIGHT = 2000  # counts that are answered in a few milliseconds; others wait for their turn, and are answered in a thread
IDS_MAX = 100
DEFAULT = timedelta(days=7)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # there are no counts before it, and Python cannot calculate with the first days of year 1
UNITS: Mapping[str, tuple[Unit, timedelta]] = {
    "hourly": ("hour", timedelta(hours=1)),
    "daily": ("day", timedelta(days=1)),
    "weekly": ("week", timedelta(days=7)),
    "monthly": ("month", timedelta(days=28)),
}
DIMENSIONS = ("period", "domain", "email", "broadcast")

# The counts that each metric is the sum of. Those of opens and clicks: store/tracking/hits.
SUMS: Mapping[str, tuple[str, ...]] = {
    "received": ("email.received",),
    "delivered": ("email.delivered",),
    "complained": ("email.complained",),
    "suppressed": ("email.suppressed",),
    "bounced": ("email.bounced.transient", "email.bounced.permanent", "email.bounced.undetermined"),
    "bounced_transient": ("email.bounced.transient",),
    "bounced_permanent": ("email.bounced.permanent",),
    "bounced_undetermined": ("email.bounced.undetermined",),
    "opened": ("email.opened", "email.opened.machine"),
    "clicked": ("email.clicked", "email.clicked.machine"),
    "unsubscribed": ("email.unsubscribed",),
    "delivery_delayed": ("email.delivery_delayed",),
    "failed": ("email.failed",),
    "sent": ("email.sent",),
    "unique_opened": ("email.opened.unique",),
    "unique_clicked": ("email.clicked.unique",),
}
# The same without opens and clicks by programs.
PEOPLE: Mapping[str, tuple[str, ...]] = {
    **SUMS,
    "opened": ("email.opened",),
    "clicked": ("email.clicked",),
    "unique_opened": ("email.opened.unique.people",),
    "unique_clicked": ("email.clicked.unique.people",),
}
# The two metrics that each rate divides. Rates are in percent.
RATES: Mapping[str, tuple[str, str]] = {
    "delivery_rate": ("delivered", "sent"),
    "open_rate": ("unique_opened", "delivered"),
    "click_rate": ("unique_clicked", "delivered"),
    "bounce_rate": ("bounced", "sent"),
    "complaint_rate": ("complained", "delivered"),
    "unsubscribe_rate": ("unsubscribed", "delivered"),
}
METRICS = (*SUMS, *RATES)
TYPES = sorted({name for sums in (SUMS, PEOPLE) for types in sums.values() for name in types})

_MANY = "Repeat the parameter or separate values with commas."
_STRING = {"type": "string"}
PARAMETERS = (
    Parameter("start_date", "A date or time in ISO 8601. By default seven days before the end.", "2026-01-01", _STRING),
    Parameter("end_date", "A date (included) or time in ISO 8601. By default now.", "2026-01-07", _STRING),
    Parameter("timezone", "Where days begin: a name from the IANA time zone database. By default `UTC`.", "Europe/Vienna", _STRING),
    Parameter(
        "granularity",
        "The length of a period, by default `daily`. At most 10,000 periods.",
        "daily",
        one_of(*UNITS),
    ),
    Parameter("metrics", f"The metrics to return, by default all. {_MANY}", "sent,delivered", _STRING),
    Parameter(
        "dimensions", f"What to group by: `period`, `domain`, `email` (requires `email_id`), `broadcast`. {_MANY}", "period", _STRING
    ),
    Parameter("domain_id", f"Counts only these domains. {_MANY}", SOME_ID, _STRING),
    Parameter("email_id", f"Counts only these emails. {_MANY}", SOME_ID, _STRING),
    Parameter("broadcast_id", f"Counts only emails of these broadcasts. {_MANY}", SOME_ID, _STRING),
    Parameter(
        "exclude_machine",
        "`true` leaves out opens and clicks that were made by programs, as far as they are recognised.",
        "true",
        one_of("true", "false"),
    ),
)
_METRICS = {
    **{name: optional(number(f"How many recipients: {name.replace('_', ' ')}.", 12)) for name in SUMS},
    **{name: optional(number(f"{part} ÷ {whole}, in percent.", 98.5)) for name, (part, whole) in RATES.items()},
}
_TOTALS = View("MetricsTotals", _METRICS)
_ROW = View(
    "MetricsRow",
    {
        "period": optional(text("When the period begins.", "2026-01-02")),
        "domain_id": optional(uuid("The domain's ID.")),
        "domain_name": optional(text("The domain's name.", "example.com")),
        "email_id": optional(uuid("The email's ID.")),
        "broadcast_id": optional(uuid("The broadcast's ID.")),
        "broadcast_name": optional(text("The broadcast's name.", "News")),
        **_METRICS,
    },
)


def _words_of(about: str, example: Sequence[str], words: Iterable[str]) -> Value:
    return free(about, example, type="array", items={"type": "string", "enum": list(words)})


ANSWER = View(
    "Metrics",
    {
        "object": const("metrics", "Always `metrics`."),
        "start_date": iso("The beginning."),
        "end_date": iso("The end."),
        "metrics": _words_of("The metrics.", ["sent", "delivered"], METRICS),
        "dimensions": _words_of("The dimensions.", ["period"], DIMENSIONS),
        "granularity": choice("The length of a period.", tuple(UNITS), example="daily"),
        "totals": one(_TOTALS, "All of it together."),
        "data": optional(many(_ROW, "A row for each combination of the dimensions.")),
    },
)


@attrs.frozen
class Question:
    """What a request for metrics asks for."""

    wanted: Wanted
    zone: ZoneInfo
    granularity: Literal["hourly", "daily", "weekly", "monthly"]
    metrics: Sequence[str]
    dimensions: Sequence[str]
    periods: int
    exclude_machine: bool = False

    @property
    def counts_expected(self) -> int:
        """About how many counts the answer has at most. Without periods there are few."""
        if "period" not in self.dimensions:
            return 0
        return min(COUNTS_MAX, self.periods * len(TYPES) * (1 if len(self.dimensions) == 1 else GROUPS))

    def sums(self, counts: Sequence[Count]) -> dict[str, int]:
        """The metrics that are not rates."""
        by_type: Counter[str] = Counter()
        for count in counts:
            by_type[count.type] += count.count
        return summed(by_type, PEOPLE if self.exclude_machine else SUMS)


def question(request: Request, now: datetime) -> Question:
    zone = _zone(parameters.one(request, "timezone") or "UTC")
    granularity: Any = parameters.one(request, "granularity") or "daily"
    if granularity not in UNITS:
        raise invalid(f"The `granularity` parameter must be one of: {', '.join(UNITS)}.")
    end = min(_moment(request, "end_date", zone, now, upto=True), now)
    start = _moment(request, "start_date", zone, end - DEFAULT)
    if start >= end:
        raise invalid("The `start_date` parameter must be before `end_date` and in the past.")
    unit, length = UNITS[granularity]
    periods = math.ceil((end - start) / length)
    if periods > PERIODS_MAX:
        raise invalid(f"More than {PERIODS_MAX} periods. Choose a coarser `granularity` or a shorter time.")
    metrics = _words(request, "metrics", METRICS) or list(METRICS)
    dimensions = _words(request, "dimensions", DIMENSIONS)
    domains, emails, broadcasts = (_ids(request, name) for name in ("domain_id", "email_id", "broadcast_id"))
    if "email" in dimensions and not emails:
        raise invalid("The dimension `email` requires the `email_id` parameter.")
    if "email" in dimensions and "broadcast" in dimensions:
        raise invalid("The dimensions `email` and `broadcast` cannot be combined.")
    if emails and (broadcasts or "broadcast" in dimensions):
        raise invalid("The parameter `email_id` cannot be combined with broadcasts.")
    wanted = Wanted(
        first_hour(start) if start.astimezone(zone).time() == time() else start,
        end,
        unit,
        zone.key,
        TYPES,
        "period" in dimensions,
        "domain" in dimensions,
        "email" in dimensions,
        domains or None,
        emails or None,
        bool(broadcasts) or "broadcast" in dimensions,
        "broadcast" in dimensions,
        broadcasts or None,
    )
    exclude = parameters.choice(request, "exclude_machine", "true", "false") == "true"
    return Question(wanted, zone, granularity, metrics, dimensions, periods + 1, exclude)


def answer(question: Question, counts: Sequence[Count], names: Mapping[UUID, str]) -> dict[str, object]:
    """`names`: of domains and broadcasts."""
    wanted = question.wanted
    found: dict[str, object] = {
        "object": "metrics",
        "start_date": iso_time(wanted.start),
        "end_date": iso_time(wanted.end),
        "metrics": list(question.metrics),
        "dimensions": list(question.dimensions),
        "granularity": question.granularity,
        "totals": _figures(question.metrics, question.sums(counts)),
    }
    return {**found, "data": _rows(question, counts, names)} if question.dimensions else found


def _rows(question: Question, counts: Sequence[Count], names: Mapping[UUID, str]) -> list[dict[str, object]]:
    groups: dict[tuple[Any, ...], list[Count]] = {}
    if tuple(question.dimensions) == ("period",):
        groups = {(period, None, None, None): [] for period in _periods(question)}
    for count in counts:
        groups.setdefault((count.hour or count.day, count.domain_id, count.email_id, count.broadcast_id), []).append(count)
    rows, nothing = [], _figures(question.metrics, question.sums(()))
    for (period, domain_id, email_id, broadcast_id), group in groups.items():
        row: dict[str, object] = {}
        if period is not None:
            row["period"] = _period(period, question.zone)
        if domain_id is not None:
            row |= {"domain_id": str(domain_id), **({"domain_name": names[domain_id]} if domain_id in names else {})}
        if email_id is not None:
            row["email_id"] = str(email_id)
        if broadcast_id is not None:
            row |= {"broadcast_id": str(broadcast_id), **({"broadcast_name": names[broadcast_id]} if broadcast_id in names else {})}
        rows.append(row | (_figures(question.metrics, question.sums(group)) if group else nothing))
    return rows


def summed(by_type: Mapping[str, int], sums: Mapping[str, tuple[str, ...]] = SUMS) -> dict[str, int]:
    """The metrics that are not rates, from counts by type."""
    return {metric: sum(by_type.get(name, 0) for name in types) for metric, types in sums.items()}


def _figures(metrics: Sequence[str], sums: Mapping[str, int]) -> dict[str, float]:
    return {metric: sums[metric] if metric in sums else _rate(*(sums[name] for name in RATES[metric])) for metric in metrics}


def _rate(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


# Periods


def _periods(question: Question) -> Iterator[datetime | date]:
    """All periods, also those without mail."""
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
        raise invalid("The `timezone` parameter must be a name from the IANA time zone database, such as `Europe/Vienna`.") from None


def _moment(request: Request, name: str, zone: tzinfo, default: datetime, *, upto: bool = False) -> datetime:
    text = parameters.one(request, name).replace(" ", "+")  # a plus that was not encoded
    if not text:
        return default
    try:
        day = _day(text)
        if day is not None:
            day += timedelta(days=1 if upto else 0)
            return max(EARLIEST, datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC))
        at = datetime.fromisoformat(text)
        return max(EARLIEST, (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC))
    except (ValueError, OverflowError):
        raise invalid(f"The `{name}` parameter must be a date or time in ISO 8601.") from None


def _day(text: str) -> date | None:
    """The date, if the text has no time. ISO 8601 also writes it without hyphens, or with the number of the week."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _words(request: Request, name: str, allowed: Sequence[str]) -> list[str]:
    words = list(dict.fromkeys(parameters.several(request, name)))
    for word in words:
        if word not in allowed:
            raise invalid(f"The `{name}` parameter can have: {', '.join(allowed)}.")
    return words


def _ids(request: Request, name: str) -> list[UUID]:
    ids = [parameters.uuid(text, name) for text in parameters.several(request, name)]
    if len(ids) > IDS_MAX:
        raise invalid(f"The `{name}` parameter can have at most {IDS_MAX} IDs.")
    return ids
