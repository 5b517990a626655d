"""The figures as Prometheus reads them. The rooms keep plain numbers; they are looked at when somebody asks.

`Sheet` collects one answer: `counter` and `gauge` take a name without `mailsvc_`, a help text and samples by label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from twisted.logger import Logger

from mailsvc.accounts.usage import LEVELS, LISTED, Accounting, reached
from mailsvc.settings.plans import WORDS
from mailsvc.store.logs.figures import Reading

Samples = Mapping[Any, float]  # by tuples of label values
LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

log = Logger()


@attrs.define(eq=False)
class Sheet:
    """The families of one answer."""

    families: list[Any] = attrs.field(factory=list)

    def counter(self, name: str, help: str, value: float | Samples, labels: Sequence[str] = ()) -> None:
        self._add(CounterMetricFamily, name, help, value, labels)

    def gauge(self, name: str, help: str, value: float | Samples, labels: Sequence[str] = ()) -> None:
        self._add(GaugeMetricFamily, name, help, value, labels)

    def collect(self) -> Iterator[Any]:
        yield from self.families

    def text(self) -> bytes:
        """As Prometheus reads it."""
        registry = CollectorRegistry()
        registry.register(self)
        return bytes(generate_latest(registry))

    def _add(self, family: Any, name: str, help: str, value: float | Samples, labels: Sequence[str]) -> None:
        made = family(f"mailsvc_{name}", help, labels=labels)
        for values, number in (value if isinstance(value, Mapping) else {(): value}).items():
            made.add_metric(values, number)
        self.families.append(made)


@attrs.define(eq=False)
class Metrics:
    """Whoever has figures adds a function that writes them on a sheet; `read` gives those that stand in the database."""

    read: Callable[[], Awaitable[Reading]]
    sources: list[Callable[[Sheet], None]] = attrs.field(factory=list)
    lag: Histogram = attrs.field(init=False)
    _own: CollectorRegistry = attrs.field(factory=CollectorRegistry, init=False)

    def __attrs_post_init__(self) -> None:
        self.lag = Histogram("mailsvc_reactor_lag_seconds", "By how much calls came too late.", buckets=LAGS, registry=self._own)
        ProcessCollector(registry=self._own)

    def add(self, source: Callable[[Sheet], None]) -> None:
        self.sources.append(source)

    def own(self) -> Sheet:
        """What this process knows by itself."""
        sheet = Sheet()
        for source in self.sources:
            source(sheet)
        return sheet

    async def text(self) -> bytes:
        """Everything in Prometheus' text format. Without a database: what this process knows by itself."""
        sheet = self.own()
        try:
            reading = await self.read()
        except Exception as error:
            log.warn("the figures of the database cannot be read: {error}", error=str(error))
            sheet.gauge("database_up", "Whether the figures of the database could be read.", 0)
        else:
            sheet.gauge("database_up", "Whether the figures of the database could be read.", 1)
            installation(sheet, reading)
        return bytes(generate_latest(self._own)) + sheet.text()


def installation(sheet: Sheet, reading: Reading) -> None:
    """What is the same for all processes on one database, but for `leases`."""
    waiting = {(each.state, _kind(each.bulk)): each for each in reading.waiting}
    labels = ("state", "class")
    sheet.gauge("queue_recipients", "Recipients that wait.", {key: each.count for key, each in waiting.items()}, labels)
    sheet.gauge(
        "queue_oldest_seconds", "Since the oldest of them was accepted.", {key: each.oldest for key, each in waiting.items()}, labels
    )
    sheet.gauge("queue_overdue_seconds", "For how long the longest overdue recipient could have been sent.", reading.overdue)
    sheet.gauge("queue_unexplained", "Recipients that wait without a reason or a time; always 0.", reading.unexplained)
    sheet.gauge("leases", "Recipients that this process has taken to send.", reading.leases)
    sheet.gauge("destinations_resting", "Destinations that get no mail just now.", _each(reading.resting), ("state",))
    sheet.gauge("processes", "Processes that live, by role.", _each(reading.processes), ("role",))
    sheet.gauge("webhook_messages", "Messages to webhooks that wait.", reading.webhooks)
    sheet.gauge("webhook_oldest_seconds", "Since the event of the oldest of them.", reading.webhooks_oldest)
    sheet.gauge("ledger_events", "Committed events that have no number yet (at most 100000).", reading.ledger.events)
    sheet.gauge("ledger_lag_seconds", "Since the oldest of them was committed.", reading.ledger.seconds)


def database(pool: Any, notifications: Any) -> Callable[[Sheet], None]:
    def write(sheet: Sheet) -> None:
        connections = {("busy",): pool.busy, ("idle",): pool.connections - pool.busy}
        sheet.gauge("pool_connections", "Connections to the database.", connections, ("state",))
        sheet.gauge("pool_waiting", "Callers that wait for one.", pool.waiting)
        sheet.counter("pool_statements", "Statements.", pool.statements)
        sheet.counter("pool_commits", "Transactions of several statements that were committed.", pool.commits)
        sheet.counter("notifications_sent", "Notifications sent to other processes.", notifications.sent)
        sheet.counter("bell_rings", "Deprecated: use mailsvc_notifications_sent_total.", notifications.sent)  # until the next release

    return write


def batches(found: Mapping[str, Any]) -> Callable[[Sheet], None]:
    """Shared commits, by what they write: items divided by writes is their size."""

    def write(sheet: Sheet) -> None:
        sheet.counter("commit_writes", "Shared commits.", {(name,): batch.written for name, batch in found.items()}, ("batch",))
        sheet.counter("commit_items", "What was written in them.", {(name,): batch.items for name, batch in found.items()}, ("batch",))
        sheet.gauge("commit_waiting", "Items that wait.", {(name,): batch.waiting for name, batch in found.items()}, ("batch",))

    return write


def quotas(usage: Accounting) -> Callable[[Sheet], None]:
    """The quotas of accounts."""

    def write(sheet: Sheet) -> None:
        refused = dict.fromkeys(WORDS, 0) | usage.quotas.refused
        sheet.counter("quota_refusals", "Submissions refused for a quota.", {(p,): n for p, n in refused.items()}, ("period",))
        sheet.counter("quota_leases", "Parts of quotas that were asked for.", usage.quotas.leases)
        sheet.gauge("quota_held", "Recipients of quotas that this process has leased and not given out.", usage.quotas.held)
        near = usage.warnings.near
        levels = Counter(dict.fromkeys(LEVELS, 0)) + Counter(reached(each) for each in near)
        counts = {(str(level),): levels[level] for level in LEVELS}
        sheet.gauge("quota_accounts", "Quotas of which so many percent are used, at least.", counts, ("percent",))
        left = {(str(each.number), each.period): each.most - each.taken for each in near[:LISTED]}
        sheet.gauge("quota_left", "Recipients left to accounts that have used 80 %.", left, ("account", "period"))

    return write


def accepts(intake: Any) -> Callable[[Sheet], None]:
    def write(sheet: Sheet) -> None:
        found = {"api": 0, "smtp": 0} | intake.accepted
        sheet.counter("accepted", "Emails that were accepted.", _each(found), ("source",))

    return write


def deliveries(delivery: Any, settling: Any) -> Callable[[Sheet], None]:
    """The way out of this process."""

    def write(sheet: Sheet) -> None:
        outcomes = dict.fromkeys(("delivered", "deferred", "bounced", "uncertain", "failed"), 0) | settling.outcomes
        told = "Recipients by what became of them in an attempt; expired: their time ended while they waited in the queue."
        sheet.counter("deliveries", told, _each(outcomes | {"expired": delivery.expired}), ("outcome",))
        lanes = list(delivery.lanes)
        sheet.gauge("lanes", "Destinations with mail in memory.", len(lanes))
        sheet.gauge("lane_waiting", "Transactions that wait in them.", sum(lane.waiting for lane in lanes))
        sheet.gauge("lane_busy", "Transactions under way.", sum(lane.busy for lane in lanes))
        sheet.gauge("delivery_connections", "Connections to other servers, being opened included.", delivery.slots.taken)
        sheet.gauge("delivery_memory_octets", "Messages in memory.", delivery.memory.used)

    return write


def budgets(found: Any) -> Callable[[Sheet], None]:
    """Memory and disk of the requests and mails in progress (budget)."""

    def write(sheet: Sheet) -> None:
        pools, labels = dict(found.pools()), ("client", "resource")
        sheet.gauge("budget_used_bytes", "Used by requests and mails in progress.", {n: pool.used for n, pool in pools.items()}, labels)
        sheet.gauge("budget_limit_bytes", "What they may use.", {n: pool.limit for n, pool in pools.items()}, labels)
        sheet.counter("budget_refused", "How often there was no room.", {n: pool.refused for n, pool in pools.items()}, labels)
        works = {(name,): pool.waiting for (name, resource), pool in pools.items() if resource == "work"}
        sheet.gauge("budget_waiting", "Large requests that wait for memory.", works, ("client",))

    return write


def connections(found: Any) -> Callable[[Sheet], None]:
    def write(sheet: Sheet) -> None:
        sheet.gauge("http_connections", "Open HTTP connections.", len(found))
        sheet.counter("http_connections_refused", "HTTP connections and proxied requests beyond a limit.", found.refused)
        sheet.counter("http_connections_evicted", "Idle HTTP connections closed to make room for others.", found.evicted)

    return write


# What a mail to a return path can turn out to be: bounces/reading, and bounces/intake for what it comes to.
_RETURNED = (
    "bounce", "complaint", "automatic", "delay", "success", "feedback", "unknown", "forged", "stranger", "gone", "early", "repeated",
)  # fmt: skip


def returned(returns: Any) -> Callable[[Sheet], None]:
    def write(sheet: Sheet) -> None:
        found = dict.fromkeys(_RETURNED, 0) | returns.counts
        sheet.counter(
            "returned", "Mails that came back, by what they were; only bounce and complaint change anything.", _each(found), ("kind",)
        )

    return write


def webhooks(posts: Any) -> Callable[[Sheet], None]:
    def write(sheet: Sheet) -> None:
        sheet.counter("webhook_attempts", "Requests to webhooks by what became of them.", _each(posts.outcomes), ("outcome",))
        sheet.gauge("webhook_connections", "Connections to webhooks.", posts.open)

    return write


def clock(ahead: Callable[[], float]) -> Callable[[Sheet], None]:
    return lambda sheet: sheet.gauge("clock_ahead_seconds", "By how much our clock goes before the database's.", ahead())


def _each(found: Mapping[str, float]) -> Samples:
    return {(name,): value for name, value in found.items()}


def _kind(bulk: bool) -> str:
    return "bulk" if bulk else "transactional"
