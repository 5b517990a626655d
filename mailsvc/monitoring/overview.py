"""What the first page of the operator's console shows: problems, key figures, and the last hour of this process.

It is made from the same text that Prometheus reads. Its problems correspond to the alerts in etc/alerts.yml. The page: console/overview.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs
from prometheus_client.parser import text_string_to_metric_families

from mailsvc.monitoring.coordinator import MEANING
from mailsvc.units import short_span, size

EVERY = 15.0  # seconds between two points
POINTS = 240  # an hour
WIDTH, HEIGHT = 240.0, 44.0
FREE_LEAST, BEHIND_MOST = 2e9, 100e6  # bytes, as in etc/alerts.yml
EXPIRES_SOON = 14 * 86400.0  # seconds

Values = Mapping[tuple[str, ...], float]  # by name (without mailsvc_) and label values, in the order of the label names


def values_of(text: bytes) -> dict[tuple[str, ...], float]:
    """The samples in the text for Prometheus."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name.removeprefix("mailsvc_"), *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


@attrs.frozen
class Problem:
    """A problem, described in a sentence."""

    description: str


def problems(values: Values, now: float = 0.0) -> list[Problem]:
    """The current problems. `now`: in Unix time."""

    def of(*key: str) -> float:
        return values.get(key, 0.0)

    found = [
        (values.get(("database_up",)) == 0, "The database is unreachable. No mail is accepted or sent."),
        (
            values.get(("database_writable",)) == 0,
            "Postgres cannot write: its disk or memory is full, a table is locked, or commits wait for a standby. No mail is accepted: "
            "`mailsvc doctor` names the reason.",
        ),
        (
            of("database_restored") > 0,
            "The database was restored from a backup, and all mail is on hold. Read “Restore” in docs/operations.md, then run "
            "`mailsvc queue release`.",
        ),
        *(
            (count > 0, f"Mail of the region {region} is queued, but no process of this region with the delivery role is running.")
            for (region,), count in of_each(values, "queue_undelivered").items()
        ),
        (
            of("queue_unexplained") > 0,
            f"Recipients queued without a reason: {of('queue_unexplained'):,.0f}. This is a bug: please report it.",
        ),
        (of("queue_overdue_seconds") > 300, f"A recipient has been due for {seconds(of('queue_overdue_seconds'))}."),
        (
            of("queue_oldest_seconds", "transactional", "queued") > 600,
            f"Transactional mail has been waiting {seconds(of('queue_oldest_seconds', 'transactional', 'queued'))} for its first attempt.",
        ),
        (of("ledger_lag_seconds") > 60, f"The event ledger is {seconds(of('ledger_lag_seconds'))} behind. Is a ledger process running?"),
        (
            abs(of("clock_ahead_seconds")) > 5,
            f"This clock is off the database's by {of('clock_ahead_seconds'):+.0f} s. Above database.clock_tolerance, mail is held.",
        ),
        (
            of("accounts_held") > 0,
            f"Accounts held because of bounces or complaints: {of('accounts_held'):,.0f}. `mailsvc queue list` shows them.",
        ),
        *(
            (
                count > 0,
                f"The source address {address} is on {'a block list' if count == 1 else f'{count:.0f} block lists'} and sends no mail. "
                "`mailsvc sources list` names them: find the reason on their website, fix it, and request removal.",
            )
            for (address,), count in of_each(values, "source_listed").items()
        ),
        (of("pool_waiting") > 20, f"Operations waiting for a database connection: {of('pool_waiting'):,.0f}."),
        (values.get(("coordinator_up",)) == 0, f"This process cannot connect to the cluster's coordinator: {MEANING}."),
        *_of_resources(values, now),
    ]
    return [Problem(sentence) for present, sentence in found if present]


def _of_resources(values: Values, now: float) -> list[tuple[bool, str]]:
    """Problems that can wait for a day: standby, disk, certificate."""
    behind, free = values.get(("database_standby_lag_bytes",), 0.0), values.get(("temporary_free_bytes",), FREE_LEAST)
    left = values.get(("certificate_expires_timestamp_seconds",), now + EXPIRES_SOON) - now
    expires = f"expires in {seconds(left)}: check certbot" if left > 0 else "has expired"
    return [
        (
            behind > BEHIND_MOST,
            f"A standby of Postgres is {size(behind)} behind: what it lacks is lost if it takes over now.",
        ),
        (free < FREE_LEAST, f"The disk with temporary files (TMPDIR) has {size(free)} free."),
        (left < EXPIRES_SOON, f"The certificate of the SMTP ports {expires}."),
    ]


def total(values: Values, name: str) -> float:
    """The sum over all labels."""
    return sum(value for key, value in values.items() if key[0] == name)


def of_each(values: Values, name: str) -> dict[tuple[str, ...], float]:
    """The values by label, largest first."""
    found = {key[1:]: value for key, value in values.items() if key[0] == name}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def quantile(values: Values, name: str, share: float) -> float | None:
    """The upper bound of the bucket that holds this quantile. None: without data, or above the last bucket."""
    buckets = sorted((float(key[1]), value) for key, value in values.items() if key[0] == f"{name}_bucket")
    whole = buckets[-1][1] if buckets else 0.0
    return next((edge for edge, count in buckets if whole and count >= share * whole and edge != float("inf")), None)


@attrs.define(eq=False)
class Series:
    """The rate of a counter during the last hour, per minute."""

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
        """An SVG path with the newest point at the right edge."""
        step, top = WIDTH / (POINTS - 1), self.most or 1.0
        at = [(WIDTH - (len(self.points) - 1 - n) * step, HEIGHT - 2 - (HEIGHT - 4) * point / top) for n, point in enumerate(self.points)]
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in at) if at else ""


def _series() -> list[Series]:
    return [
        Series(("accepted_total",), "accepted"),
        Series(("deliveries_total", "delivered"), "delivered"),
        Series(("deliveries_total", "deferred"), "deferred"),
        Series(("deliveries_total", "bounced"), "bounced"),
    ]


@attrs.frozen(kw_only=True)
class Shown:
    """What the page shows. `queue`: state, class, recipients, age of the oldest. `cards`: a title, and rows of a name and a figure."""

    title: str
    problems: Sequence[Problem]
    series: Sequence[Series]
    queue: Sequence[tuple[str, str, float, float]]
    unexplained: float | None
    cards: Sequence[tuple[str, list[tuple[str, str]]]]
    near: Mapping[tuple[str, ...], float]
    slow: Mapping[tuple[str, ...], float]
    width: float = WIDTH
    height: float = HEIGHT


@attrs.define(eq=False)
class Overview:
    """Keeps the rates of the last hour."""

    series: Sequence[Series] = attrs.field(factory=_series)

    def remember(self, text: bytes) -> None:
        """Add a point. `text` needs only the figures of this process."""
        values = values_of(text)
        for one in self.series:
            one.add(values)

    def shown(self, text: bytes, title: str, now: float = 0.0) -> Shown:
        values = values_of(text)
        return Shown(
            title=title, problems=problems(values, now), series=self.series, queue=_queue(values), unexplained=values.get(
                ("queue_unexplained",)), cards=_cards(values), near=of_each(values, "quota_left"),
            slow=of_each(values, "throttled_emails_per_minute"),
        )  # fmt: skip


def _queue(values: Values) -> list[tuple[str, str, float, float]]:
    """Rows of state, class, recipients and age of the oldest in seconds."""
    oldest = of_each(values, "queue_oldest_seconds")
    return [(state, kind, count, oldest.get((kind, state), 0.0)) for (kind, state), count in of_each(values, "queue_recipients").items()]


def _cards(values: Values) -> list[tuple[str, list[tuple[str, str]]]]:
    """Cards: a title, and rows of a name and a figure."""

    def of(*key: str) -> str:
        return number(values[key]) if key in values else "–"

    def each(name: str) -> str:
        return ", ".join(f"{number(value)}\u00a0{' '.join(labels)}" for labels, value in of_each(values, name).items() if value) or "none"

    def together(batch: str) -> str:
        writes = values.get(("commit_writes_total", batch), 0.0)
        return f"{values['commit_items_total', batch] / writes:.1f}" if writes else "–"

    lag = quantile(values, "reactor_lag_seconds", 0.99)
    return [
        ("Outbound", [
            ("Deliveries", each("deliveries_total")), ("Connections", of("delivery_connections")), ("Lanes", of("lanes")),
            ("In lanes: waiting, sending", f"{of('lane_waiting')}, {of('lane_busy')}"), ("Leases held by this process", of("leases")),
            ("Destinations backing off", each("destinations_held")),
        ]),
        ("Inbound", [
            ("Accepted", each("accepted_total")), ("Rejected for quota", each("quota_refusals_total")),
            ("Accounts at 80% and 100% of quota", f"{of('quota_accounts', '80')}, {of('quota_accounts', '100')}"),
            ("Bounces and complaints received", each("returned_total")),
        ]),
        ("Webhooks", [
            ("Pending messages", of("webhook_messages")), ("Oldest pending", seconds(values.get(("webhook_oldest_seconds",), 0.0))),
            ("Attempts", each("webhook_attempts_total")), ("Events not yet in the ledger", of("ledger_events")),
            ("Ledger lag", seconds(values.get(("ledger_lag_seconds",), 0.0))),
        ]),
        ("Database", [
            ("Connections", each("pool_connections")), ("Waiting for a connection", of("pool_waiting")),
            ("Statements", of("pool_statements_total")),
            ("Emails per commit", together("accept")), ("Outcomes per commit", together("settle")),
            ("Clock ahead of the database by", f"{values.get(('clock_ahead_seconds',), 0.0):z.2f}\u00a0s"),
        ]),
        ("Processes", [
            *((f"Role {role}", number(count)) for (role,), count in of_each(values, "processes").items()),
            ("Reactor lag (99th percentile)", "> 2.5\u00a0s" if lag is None else f"{lag * 1000:g}\u00a0ms"),
            ("Memory of this process", size(values.get(("process_resident_memory_bytes",), 0.0)).replace(" ", "\u00a0")),
        ]),
    ]  # fmt: skip


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def seconds(value: float) -> str:
    """For a table: it does not wrap."""
    return short_span(value).replace(" ", "\u00a0")
