"""Prometheus metrics. The parts of the daemon keep plain numbers; they are read when Prometheus asks.

`Exposition` collects one response: `counter` and `gauge` take a name without `mailsvc_`, a help text and samples by label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from shutil import disk_usage
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from twisted.logger import Logger

from mailsvc.accounts.abuse import AbuseWatch
from mailsvc.accounts.usage import LEVELS, LISTED, Accounting, reached
from mailsvc.broadcasts.fanout import MOVES
from mailsvc.content_filter import RESULTS as FILTER_RESULTS
from mailsvc.monitoring.coordinator import CoordinatorWatch
from mailsvc.settings.plans import WORDS
from mailsvc.store.audience.imports import RESULTS
from mailsvc.store.cells.hold import CellHold
from mailsvc.store.logs.figures import Reading

Samples = Mapping[Any, float]  # by tuples of label values
LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

log = Logger()


@attrs.define(eq=False)
class Exposition:
    """The metric families of one response."""

    families: list[Any] = attrs.field(factory=list)

    def counter(self, name: str, help: str, value: float | Samples, labels: Sequence[str] = ()) -> None:
        self._add(CounterMetricFamily, name, help, value, labels)

    def gauge(self, name: str, help: str, value: float | Samples, labels: Sequence[str] = ()) -> None:
        self._add(GaugeMetricFamily, name, help, value, labels)

    def collect(self) -> Iterator[Any]:
        yield from self.families

    def text(self) -> bytes:
        """Returns them in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return bytes(generate_latest(registry))

    def _add(self, family: Any, name: str, help: str, value: float | Samples, labels: Sequence[str]) -> None:
        metric = family(f"mailsvc_{name}", help, labels=labels)
        for values, number in (value if isinstance(value, Mapping) else {(): value}).items():
            metric.add_metric(values, number)
        self.families.append(metric)


@attrs.define(eq=False)
class Metrics:
    """Each part adds a function that writes its metrics; `read` returns those that come from the database."""

    read: Callable[[], Awaitable[Reading]]
    sources: list[Callable[[Exposition], None]] = attrs.field(factory=list)
    lag: Histogram = attrs.field(init=False)
    _own: CollectorRegistry = attrs.field(factory=CollectorRegistry, init=False)

    def __attrs_post_init__(self) -> None:
        self.lag = Histogram("mailsvc_reactor_lag_seconds", "Seconds by which scheduled calls ran late.", buckets=LAGS, registry=self._own)
        ProcessCollector(registry=self._own)

    def add(self, source: Callable[[Exposition], None]) -> None:
        self.sources.append(source)

    def own(self) -> Exposition:
        """Returns the metrics of this process."""
        exposition = Exposition()
        for source in self.sources:
            source(exposition)
        return exposition

    async def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format; without a database, those of this process."""
        exposition = self.own()
        try:
            reading = await self.read()
        except Exception as error:
            log.warn("Metrics cannot be read from the database: {error}", error=str(error))
            exposition.gauge("database_up", "Whether the database answers: 1 or 0.", 0)
        else:
            exposition.gauge("database_up", "Whether the database answers: 1 or 0.", 1)
            installation(exposition, reading)
        return bytes(generate_latest(self._own)) + exposition.text()


def installation(exposition: Exposition, reading: Reading) -> None:
    """Metrics that are the same for all processes on one database, except `leases`."""
    counts, undelivered = Counter[Any](), Counter[Any]()
    oldest: dict[Any, float] = {}
    for each in reading.waiting:
        key = each.state, _kind(each.bulk)
        counts[key] += each.count
        oldest[key] = max(oldest.get(key, 0.0), each.oldest)
        undelivered[(each.region,)] += 0 if each.region in reading.delivering else each.count
    labels = ("state", "class")
    exposition.gauge("queue_recipients", "Queued recipients, by state and class.", counts, labels)
    about = "Seconds since the oldest queued recipient was accepted, of accounts whose mail is not on hold."
    exposition.gauge("queue_oldest_seconds", about, oldest, labels)
    about = "Queued recipients of regions in which no process has the role delivery, by region. 0 for other regions with queued recipients."
    exposition.gauge("queue_undelivered", about, undelivered, ("region",))
    exposition.gauge("queue_overdue_seconds", "Seconds since the longest overdue recipient became due.", reading.overdue)
    exposition.gauge("queue_unexplained", "Queued recipients without a reason or a next attempt. Must be 0.", reading.unexplained)
    exposition.gauge("leases", "Recipients leased by this process.", reading.leases)
    held = _each(reading.resting)
    exposition.gauge("destinations_held", "Destinations that are paused or backing off, by state.", held, ("state",))
    # Until the next release.
    exposition.gauge("destinations_resting", "Deprecated: use mailsvc_destinations_held.", held, ("state",))
    exposition.gauge("processes", "Live processes, by role.", _each(reading.processes), ("role",))
    exposition.gauge("webhook_messages", "Queued webhook messages.", reading.webhooks)
    exposition.gauge("webhook_oldest_seconds", "Seconds since the event of the oldest queued webhook message.", reading.webhooks_oldest)
    exposition.gauge("database_bytes", "Size of the database with its indexes.", reading.database_bytes)
    exposition.gauge("database_standbys", "Standbys of Postgres that are connected.", reading.standbys.connected)
    about = "Bytes of the write-ahead log that the last standby has not applied yet; nothing without standbys or the role pg_monitor."
    exposition.gauge("database_standby_lag_bytes", about, {} if reading.standbys.lag is None else reading.standbys.lag)
    about = "Whether mail is on hold because the database was restored from a backup: 1 or 0."
    exposition.gauge("database_restored", about, int(reading.restored))
    exposition.gauge("ledger_events", "Committed events without a number (at most 100000).", reading.ledger.events)
    exposition.gauge("ledger_lag_seconds", "Seconds since the oldest event without a number was committed.", reading.ledger.seconds)


def database(pool: Any, notifications: Any, unwritable: Callable[[], str | None]) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        connections = {("busy",): pool.busy, ("idle",): pool.connections - pool.busy}
        exposition.gauge("pool_connections", "Database connections, by state.", connections, ("state",))
        about = (
            "Whether Postgres can write, as far as this process knows: 0 if its disk or memory is full, a table is locked, or commits wait "
            "for a standby."
        )
        exposition.gauge("database_writable", about, int(unwritable() is None))
        exposition.gauge("pool_waiting", "Callers waiting for a database connection.", pool.waiting)
        exposition.counter("pool_statements", "SQL statements.", pool.statements)
        exposition.counter("pool_commits", "Committed transactions of several statements.", pool.commits)
        exposition.counter("notifications_sent", "Notifications sent to other processes.", notifications.sent)
        exposition.counter("bell_rings", "Deprecated: use mailsvc_notifications_sent_total.", notifications.sent)  # until the next release

    return write


def disk(folder: str) -> Callable[[Exposition], None]:
    """The disk of temporary files; that of the database is the Postgres server's."""

    def write(exposition: Exposition) -> None:
        exposition.gauge("temporary_free_bytes", "Free bytes of the disk with large bodies in progress (TMPDIR).", disk_usage(folder).free)

    return write


def certificate(expires_at: Callable[[], datetime]) -> Callable[[Exposition], None]:
    """The certificate of the SMTP ports."""
    about = "When the certificate of the SMTP ports expires, in seconds since 1970."
    return lambda exposition: exposition.gauge("certificate_expires_timestamp_seconds", about, expires_at().timestamp())


def batches(found: Mapping[str, Any]) -> Callable[[Exposition], None]:
    """Shared commits, by what they write. Their average size is items divided by writes."""

    def write(exposition: Exposition) -> None:
        exposition.counter("commit_writes", "Shared commits.", {(name,): batch.written for name, batch in found.items()}, ("batch",))
        exposition.counter(
            "commit_items", "Items written in shared commits.", {(name,): batch.items for name, batch in found.items()}, ("batch",)
        )
        exposition.gauge(
            "commit_waiting", "Items waiting for a shared commit.", {(name,): batch.waiting for name, batch in found.items()}, ("batch",)
        )

    return write


def quotas(usage: Accounting) -> Callable[[Exposition], None]:
    """The quotas of accounts, and protection against abuse."""

    def write(exposition: Exposition) -> None:
        refused = dict.fromkeys(WORDS, 0) | usage.quotas.refused
        exposition.counter(
            "quota_refusals", "Requests refused because a quota was exhausted.", {(p,): n for p, n in refused.items()}, ("period",)
        )
        exposition.counter("quota_leases", "Blocks of quota leased from the database.", usage.quotas.leases)
        exposition.gauge("quota_held", "Recipients of quota leased by this process and not used yet.", usage.quotas.held)
        near = usage.warnings.near
        levels = Counter(dict.fromkeys(LEVELS, 0)) + Counter(reached(each) for each in near)
        counts = {(str(level),): levels[level] for level in LEVELS}
        text = "Quotas by the level that their use has reached: 80 (of those below 100) or 100 percent."
        exposition.gauge("quota_accounts", text, counts, ("percent",))
        left = {(str(each.number), each.period): each.most - each.taken for each in near[:LISTED]}
        exposition.gauge("quota_left", "Recipients left in quotas that are used to 80 %.", left, ("account", "period"))
        abuse(usage.abuse)(exposition)

    return write


def abuse(watch: AbuseWatch) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        exposition.gauge("accounts_held", "Accounts whose mail is held because of bounces or complaints.", len(watch.held))
        exposition.gauge("accounts_ramped", "New accounts with a daily limit.", watch.ramps)

    return write


def accepts(intake: Any) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        found = {"api": 0, "smtp": 0} | intake.accepted
        exposition.counter("accepted", "Accepted emails, by source.", _each(found), ("source",))
        if intake.content_filter is not None:
            checked = dict.fromkeys(FILTER_RESULTS, 0) | intake.content_filter.results
            text = "Messages that the content filter was asked about, by its verdict; unavailable: it did not respond in time."
            exposition.counter("content_filter", text, _each(checked), ("action",))

    return write


def deliveries(delivery: Any, settling: Any) -> Callable[[Exposition], None]:
    """Deliveries of this process."""

    def write(exposition: Exposition) -> None:
        outcomes = dict.fromkeys(("delivered", "deferred", "bounced", "uncertain", "failed", "canceled"), 0) | settling.outcomes
        text = "Recipients by the outcome of an attempt. expired: the time limit passed while they were queued."
        exposition.counter("deliveries", text, _each(outcomes | {"expired": delivery.expired}), ("outcome",))
        text = "Emails handed over by processes that accept mail. given_back: queued after all; left: another process has their lease."
        handed_over = dict.fromkeys(("sent", "given_back", "left"), 0) | delivery.handed_over.counts
        exposition.counter("handed_over", text, _each(handed_over), ("result",))
        lanes = list(delivery.lanes)
        exposition.gauge("lanes", "Destinations with mail in memory.", len(lanes))
        exposition.gauge("lane_waiting", "Transactions waiting in lanes.", sum(lane.waiting for lane in lanes))
        exposition.gauge("lane_busy", "Transactions in progress.", sum(lane.busy for lane in lanes))
        exposition.gauge("delivery_connections", "Connections to other mail servers, including those being opened.", delivery.slots.taken)
        exposition.gauge("delivery_memory_bytes", "Bytes of messages in memory.", delivery.memory.used)
        slow = sorted((each.per_minute, name) for name, each in delivery.holds.throttled().items())[:LISTED]
        text = "Emails per minute from the region to providers and destinations that throttled it lately."
        exposition.gauge("throttled_emails_per_minute", text, {(name,): rate for rate, name in slow}, ("name",))
        # Until the next release.
        exposition.gauge("delivery_memory_octets", "Deprecated: use mailsvc_delivery_memory_bytes.", delivery.memory.used)

    return write


def sources(state: Any) -> Callable[[Exposition], None]:
    """The source addresses of this process (delivery/connection/source_state)."""

    def write(exposition: Exposition) -> None:
        listed = {(each.address,): len(state.listed.get(each.address, ())) for each in state.own}
        exposition.gauge("source_listed", "Block lists that have a source address. It sends no mail then.", listed, ("address",))
        today, labels = state.sent_today(), ("address", "provider")
        text = "Emails that new source addresses have sent to a provider today (UTC), with those reserved for open connections."
        exposition.gauge("source_sent_today", text, {(address, provider): taken for address, provider, taken, _ in today}, labels)
        text = "Emails that a new source address can send to a provider today (UTC)."
        exposition.gauge("source_limit_today", text, {(address, provider): limit for address, provider, _, limit in today}, labels)

    return write


def budgets(found: Any) -> Callable[[Exposition], None]:
    """Memory and disk of requests and messages in progress (runtime/budget)."""

    def write(exposition: Exposition) -> None:
        pools, labels = dict(found.pools()), ("client", "resource")
        exposition.gauge(
            "budget_used_bytes", "Bytes used by requests and messages in progress.", {n: pool.used for n, pool in pools.items()}, labels
        )
        text = "Maximum bytes for requests and messages in progress."
        exposition.gauge("budget_limit_bytes", text, {n: pool.limit for n, pool in pools.items()}, labels)
        exposition.counter(
            "budget_refused", "Requests and messages refused for lack of space.", {n: pool.refused for n, pool in pools.items()}, labels
        )
        works = {(name,): pool.waiting for (name, resource), pool in pools.items() if resource == "work"}
        exposition.gauge("budget_waiting", "Large requests waiting for memory.", works, ("client",))

    return write


def connections(found: Any) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        exposition.gauge("http_connections", "Open HTTP connections.", len(found))
        exposition.counter("http_connections_refused", "HTTP connections and proxied requests refused because of a limit.", found.refused)
        exposition.counter("http_connections_evicted", "Idle HTTP connections closed to make room for others.", found.evicted)

    return write


# The kinds of mail received at return paths: bounces/reading and bounces/intake.
_RETURNED = (
    "bounce", "complaint", "automatic", "delay", "success", "feedback", "unknown", "forged", "no_recipient", "gone", "early", "repeated",
)  # fmt: skip


def cell(hold: CellHold | None) -> Callable[[Exposition], None]:
    """Nothing without a cell."""

    def write(exposition: Exposition) -> None:
        if hold is not None:
            exposition.counter("cell_moves", "Moves of the cell to another node that this process has followed.", hold.moves)

    return write


def coordinator(watch: CoordinatorWatch | None) -> Callable[[Exposition], None]:
    """No sample without a cell."""
    about = "Whether this process can connect to the coordinator of its cell's cluster: 1 or 0; nothing without a cell."
    return lambda exposition: exposition.gauge("coordinator_up", about, {} if watch is None else int(watch.since is None))


def returned(returns: Any) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        found = dict.fromkeys(_RETURNED, 0) | returns.counts
        found["stranger"] = found["no_recipient"]  # deprecated
        exposition.counter(
            "returned", "Mail received at return paths, by kind. Only bounce and complaint change anything.", _each(found), ("kind",)
        )

    return write


# The results of mail to addresses for reports: reports/receiving.
_REPORTED = ("dmarc", "tls", "repeated", "over_limit", "untimely", "foreign", "gone", "unreadable")


def reports(intake: Any) -> Callable[[Exposition], None]:
    """DMARC and TLS reports about customers' domains."""

    def write(exposition: Exposition) -> None:
        found = dict.fromkeys(_REPORTED, 0) | intake.counts
        exposition.counter(
            "reports", "DMARC and TLS reports received, by result. Only dmarc and tls are counted.", _each(found), ("result",)
        )
        exposition.counter(
            "reported_own_failures",
            "Messages that failed DMARC although this service sent them, as receivers report. Must not grow.",
            intake.own_failures,
        )

    return write


def broadcasts(fanout: Any, context: Any) -> Callable[[Exposition], None]:
    """Broadcasts, and people who unsubscribe."""

    def write(exposition: Exposition) -> None:
        exposition.counter("broadcast_recipients", "Recipients of broadcasts that were put into the queue.", fanout.queued)
        exposition.counter("broadcast_contacts", "Contacts of broadcasts, including those who did not want the email.", fanout.passed)
        moves = dict.fromkeys(MOVES, 0) | fanout.moved
        exposition.counter("broadcasts", "Broadcasts, by outcome.", _each(moves), ("event",))
        exposition.counter("broadcasts_paused", "Broadcasts paused after bounces, complaints or the deletion of a topic.", moves["paused"])
        people = dict.fromkeys(("one_click", "preferences"), 0) | context.unsubscribed
        exposition.counter("unsubscribes", "People who unsubscribed, by what they used.", _each(people), ("source",))

    return write


def imports(found: Any) -> Callable[[Exposition], None]:
    """Imports of contacts (store/audience/imports)."""

    def write(exposition: Exposition) -> None:
        ended = {"completed": 0, "failed": 0} | found.ended
        exposition.counter("imports", "Imports of contacts that ended, by status.", _each(ended), ("status",))
        rows = dict.fromkeys(RESULTS, 0) | found.rows
        exposition.counter("import_rows", "Rows of imports, by outcome.", _each(rows), ("result",))

    return write


def tracking(recorder: Any) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        about = "Opens and clicks that were stored, by kind and by who: a person, or the code of a program."
        exposition.counter("tracking_hits", about, dict(recorder.recorded), ("kind", "by"))
        dropped = dict.fromkeys(("full", "failed", "deleted", "objected", "repeated"), 0) | recorder.dropped
        exposition.counter("tracking_hits_dropped", "Opens and clicks that were not stored, by reason.", _each(dropped), ("reason",))
        exposition.gauge("tracking_hits_pending", "Opens and clicks that wait in memory to be stored.", len(recorder))

    return write


def webhooks(posts: Any) -> Callable[[Exposition], None]:
    def write(exposition: Exposition) -> None:
        exposition.counter("webhook_attempts", "Webhook requests, by outcome.", _each(posts.outcomes), ("outcome",))
        exposition.gauge("webhook_connections", "Connections to webhook endpoints.", posts.open)

    return write


def clock(ahead: Callable[[], float]) -> Callable[[Exposition], None]:
    return lambda exposition: exposition.gauge(
        "clock_ahead_seconds", "Seconds by which this machine's clock is ahead of the database's.", ahead()
    )


def _each(found: Mapping[str, float]) -> Samples:
    return {(name,): value for name, value in found.items()}


def _kind(bulk: bool) -> str:
    return "bulk" if bulk else "transactional"
