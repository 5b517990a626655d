"""The figures on one page for the operator: how it stands, what is wrong, and the last hour of this process. Pure but for its memory.

It is made of the same text that Prometheus reads, and what it calls wrong is what etc/alerts.yml wakes somebody for. The page: listener.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import attrs
from jinja2 import Environment, StrictUndefined
from prometheus_client.parser import text_string_to_metric_families

EVERY = 15.0  # seconds between two points of a line
POINTS = 240  # an hour
WIDTH, HEIGHT = 240.0, 44.0

Values = Mapping[tuple[str, ...], float]  # by name without mailsvc_ and the values of its labels, in the order of their names


def values_of(text: bytes) -> dict[tuple[str, ...], float]:
    """What Prometheus is told."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name.removeprefix("mailsvc_"), *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


@attrs.frozen
class Trouble:
    """What somebody has to look at. `what` is a sentence."""

    what: str


def troubles(values: Values) -> list[Trouble]:
    """What is wrong at this moment."""

    def of(*key: str) -> float:
        return values.get(key, 0.0)

    waiting = total(values, "queue_recipients")
    found = [
        (values.get(("database_up",)) == 0, "The database cannot be read: nothing is accepted or sent."),
        (waiting > 0 and not of("processes", "delivery"), "Mail waits, and no process with the role delivery lives."),
        (of("queue_unexplained") > 0, f"{of('queue_unexplained'):,.0f} recipients wait without a reason: a defect of mailsvc, report it."),
        (of("queue_overdue_seconds") > 300, f"A recipient could have been sent {seconds(of('queue_overdue_seconds'))} ago."),
        (
            of("queue_oldest_seconds", "transactional", "queued") > 600,
            f"Transactional mail that was never tried waits since {seconds(of('queue_oldest_seconds', 'transactional', 'queued'))}.",
        ),
        (of("ledger_lag_seconds") > 60, f"Events are numbered {seconds(of('ledger_lag_seconds'))} late: does a ledger run?"),
        (
            abs(of("clock_ahead_seconds")) > 5,
            f"This clock is {of('clock_ahead_seconds'):+.0f} s off the database's. Above database.clock_tolerance all mail is held.",
        ),
        (of("pool_waiting") > 20, f"{of('pool_waiting'):,.0f} callers wait for a database connection."),
    ]
    return [Trouble(sentence) for is_so, sentence in found if is_so]


def total(values: Values, name: str) -> float:
    """Over all labels."""
    return sum(value for key, value in values.items() if key[0] == name)


def of_each(values: Values, name: str) -> dict[tuple[str, ...], float]:
    """By label values, the largest first."""
    found = {key[1:]: value for key, value in values.items() if key[0] == name}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def quantile(values: Values, name: str, share: float) -> float | None:
    """The bucket of a histogram below which so large a share lies; None: above the last one, or there is nothing."""
    buckets = sorted((float(key[1]), value) for key, value in values.items() if key[0] == f"{name}_bucket")
    whole = buckets[-1][1] if buckets else 0.0
    return next((edge for edge, count in buckets if whole and count >= share * whole and edge != float("inf")), None)


@attrs.define(eq=False)
class Line:
    """One figure of the last hour: how much it grew from each point to the next, a minute."""

    key: tuple[str, ...]
    label: str
    points: deque[float] = attrs.field(factory=lambda: deque(maxlen=POINTS), init=False)
    _last: float | None = attrs.field(default=None, init=False)

    def add(self, values: Values) -> None:
        now = total(values, self.key[0]) if len(self.key) == 1 else values.get(self.key, 0.0)
        if self._last is not None:
            self.points.append(max(0.0, now - self._last) * 60 / EVERY)
        self._last = now

    @property
    def newest(self) -> float:
        return self.points[-1] if self.points else 0.0

    @property
    def most(self) -> float:
        return max(self.points, default=0.0)

    @property
    def path(self) -> str:
        """An SVG path, the newest point at the right edge."""
        step, top = WIDTH / (POINTS - 1), self.most or 1.0
        at = [(WIDTH - (len(self.points) - 1 - n) * step, HEIGHT - 2 - (HEIGHT - 4) * point / top) for n, point in enumerate(self.points)]
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in at) if at else ""


def _lines() -> list[Line]:
    return [
        Line(("accepted_total",), "accepted"),
        Line(("deliveries_total", "delivered"), "delivered"),
        Line(("deliveries_total", "deferred"), "put off"),
        Line(("deliveries_total", "bounced"), "bounced"),
    ]


@attrs.define(eq=False)
class Overview:
    """Remembers an hour, and writes the page."""

    lines: Sequence[Line] = attrs.field(factory=_lines)

    def remember(self, text: bytes) -> None:
        """Every fifteen seconds; needs no more than what the process knows by itself."""
        values = values_of(text)
        for line in self.lines:
            line.add(values)

    def page(self, text: bytes, title: str) -> bytes:
        values = values_of(text)
        shown = _TEMPLATE.render(
            title=title, style=_STYLE, troubles=troubles(values), lines=self.lines, queue=_queue(values), unexplained=values.get(
                ("queue_unexplained",)), cards=_cards(values), width=WIDTH, height=HEIGHT, near=of_each(values, "quota_left"),
        )  # fmt: skip
        return shown.encode("utf-8", "replace")


def _queue(values: Values) -> list[tuple[str, str, float, float]]:
    """State, class, recipients, seconds of the oldest."""
    oldest = of_each(values, "queue_oldest_seconds")
    return [(state, kind, count, oldest.get((kind, state), 0.0)) for (kind, state), count in of_each(values, "queue_recipients").items()]


def _cards(values: Values) -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles with rows of a name and a figure."""

    def of(*key: str) -> str:
        return number(values[key]) if key in values else "–"

    def each(name: str) -> str:
        return ", ".join(f"{number(value)}\u00a0{' '.join(labels)}" for labels, value in of_each(values, name).items() if value) or "none"

    def size(batch: str) -> str:
        writes = values.get(("commit_writes_total", batch), 0.0)
        return f"{values['commit_items_total', batch] / writes:.1f}" if writes else "–"

    lag = quantile(values, "reactor_lag_seconds", 0.99)
    return [
        ("Way out", [
            ("deliveries", each("deliveries_total")), ("connections", of("delivery_connections")), ("lanes", of("lanes")),
            ("in lanes: waiting, under way", f"{of('lane_waiting')}, {of('lane_busy')}"), ("leases of this process", of("leases")),
            ("destinations that rest", each("destinations_resting")),
        ]),
        ("Way in", [
            ("accepted", each("accepted_total")), ("refused for a quota", each("quota_refusals_total")),
            ("quotas at 80 and 100 %", f"{of('quota_accounts', '80')}, {of('quota_accounts', '100')}"),
            ("came back", each("returned_total")),
        ]),
        ("Word back", [
            ("webhook messages that wait", of("webhook_messages")), ("the oldest", seconds(values.get(("webhook_oldest_seconds",), 0.0))),
            ("attempts", each("webhook_attempts_total")), ("events without a number", of("ledger_events")),
            ("the ledger is behind by", seconds(values.get(("ledger_lag_seconds",), 0.0))),
        ]),
        ("Database", [
            ("connections", each("pool_connections")), ("callers that wait", of("pool_waiting")),
            ("statements", of("pool_statements_total")),
            ("emails in a commit", size("accept")), ("outcomes in a commit", size("settle")),
            ("this clock is ahead by", f"{values.get(('clock_ahead_seconds',), 0.0):.2f}\u00a0s"),
        ]),
        ("Processes", [
            *((role, number(count)) for (role,), count in of_each(values, "processes").items()),
            ("99 % of calls are late by less than", "over 2.5\u00a0s" if lag is None else f"{lag * 1000:g}\u00a0ms"),
            ("memory of this one", f"{values.get(('process_resident_memory_bytes',), 0.0) / 1e6:,.0f}\u00a0MB"),
        ]),
    ]  # fmt: skip


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def seconds(value: float) -> str:
    """For people, in one piece."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= unit:
            return f"{value // unit:.0f}\u00a0{name}" if name == "d" else f"{value / unit:.0f}\u00a0{name}"
    return f"{value:.0f}\u00a0s" if value >= 10 or value == 0 else f"{value:.1f}\u00a0s"


def _environment(filters: Iterable[tuple[str, object]]) -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(filters)
    return environment


_SOURCE = (resources.files("mailsvc.monitoring") / "overview.html").read_text("utf-8")
_STYLE = re.sub(r"\s+", " ", (resources.files("mailsvc.monitoring") / "overview.css").read_text("utf-8")).strip()
_TEMPLATE = _environment([("number", number), ("seconds", seconds)]).from_string(_SOURCE)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {  # nothing runs, and nothing is asked for
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
