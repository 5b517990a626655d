"""Metrics: volume, deliverability, bounce and complaint rates, opens and clicks, from the rollups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.dashboard import zones
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.mail import csv_file
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.events.rollups import Count, Rollups, Unit, Wanted, first_hour

METRICS = f"{HOME}/metrics"
RANGES = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days"}
ZONES = (
    "UTC",
    "America/Los_Angeles",
    "America/New_York",
    "America/Sao_Paulo",
    "Europe/London",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Australia/Sydney",
)
BOUNCE_DANGER, COMPLAINT_DANGER = 4.0, 0.08  # percent; above them large mailbox providers reject mail
SAMPLE_MIN = 100  # recipients below which a rate is not meaningful, as in the insights
BOUNCED = tuple(f"email.bounced.{kind}" for kind in ("permanent", "transient", "undetermined"))
UNSENT = ("email.failed", "email.suppressed")  # never handed to a server
TYPES = ("email.sent", "email.delivered", "email.complained", *BOUNCED, *UNSENT)
UNSUBSCRIBED = "email.unsubscribed"
BROADCASTS = 50  # in the table
COLUMNS = (
    "time", "sent", "delivered", "bounced_permanent", "bounced_transient", "bounced_undetermined", "complained", "not_sent",
)  # fmt: skip
# Opens and clicks: all of them, and without those that programs made (store/tracking/hits).
ENGAGED = tuple(f"email.{kind}{end}" for kind in ("opened", "clicked") for end in ("", ".machine", ".unique", ".unique.people"))


@attrs.frozen
class Rates:
    """Counts, and rates in percent (None without anything delivered or bounced)."""

    sent: int
    delivered: int
    bounced: int
    complained: int
    unsent: int
    kinds: tuple[int, ...]  # bounces: permanent, transient, undetermined
    deliverability: float | None
    bounce: float | None
    complaint: float | None

    @property
    def bounces_high(self) -> bool:
        return too_high(self.bounce, self.delivered + self.bounced, BOUNCE_DANGER)

    @property
    def complaints_high(self) -> bool:
        return too_high(self.complaint, self.delivered, COMPLAINT_DANGER)


def too_high(rate: float | None, recipients: int, danger: float) -> bool:
    """Whether a rate of so many recipients is worth a warning."""
    return rate is not None and rate > danger and recipients >= SAMPLE_MIN


def rates(counts: Iterable[Count]) -> Rates:
    of: dict[str, int] = {}
    for count in counts:
        of[count.type] = of.get(count.type, 0) + count.count
    delivered, complained, kinds = of.get("email.delivered", 0), of.get("email.complained", 0), tuple(of.get(kind, 0) for kind in BOUNCED)
    bounced, unsent = sum(kinds), sum(of.get(kind, 0) for kind in UNSENT)
    finished = delivered + bounced
    return Rates(
        of.get("email.sent", 0), delivered, bounced, complained, unsent, kinds,
        _share(delivered, finished), _share(bounced, finished), _share(complained, delivered),
    )  # fmt: skip


@attrs.frozen
class Engagement:
    """Opens or clicks, the emails that were opened or clicked, and those as a share of the delivered ones, in percent."""

    total: int
    unique: int
    rate: float | None

    @classmethod
    def of(cls, kind: str, counts: Iterable[Count], delivered: int, *, programs: bool) -> Engagement:
        """`programs`: include those that programs made."""
        total = (f"email.{kind}", f"email.{kind}.machine") if programs else (f"email.{kind}",)
        unique = f"email.{kind}.unique" if programs else f"email.{kind}.unique.people"
        found = [(count.type, count.count) for count in counts]
        emails = sum(number for type_, number in found if type_ == unique)
        return cls(sum(number for type_, number in found if type_ in total), emails, _share(emails, delivered))


@attrs.frozen
class BroadcastRow:
    """One broadcast in the table."""

    name: str
    delivered: int
    opened: Engagement
    clicked: Engagement
    unsubscribed: int

    @classmethod
    def of(cls, name: str, counts: Sequence[Count], *, programs: bool) -> BroadcastRow:
        delivered = rates(counts).delivered
        opened, clicked = (Engagement.of(kind, counts, delivered, programs=programs) for kind in ("opened", "clicked"))
        return cls(name, delivered, opened, clicked, sum(count.count for count in counts if count.type == UNSUBSCRIBED))


@attrs.frozen
class Selection:
    """What the query chose. `days`: as text; `domain`: None for all."""

    domains: Sequence[Domain]
    domain: Domain | None
    days: str
    zone_name: str
    zone: tzinfo
    unit: Unit
    since: datetime
    until: datetime

    @property
    def limit(self) -> list[UUID] | None:
        return [self.domain.id] if self.domain else None

    @property
    def query(self) -> str:
        given = {"domain": str(self.domain.id) if self.domain else "", "days": self.days, "zone": self.zone_name}
        return urlencode({name: value for name, value in given.items() if value})


def counted(since: datetime, until: datetime, unit: Unit = "hour", zone: str = "UTC", **grouping: Any) -> Wanted:
    """`since`: a whole hour, or where a day begins."""
    return Wanted(first_hour(since), until, unit, zone, TYPES, **grouping)


@attrs.define(eq=False)
class Metrics:
    app = section_app()
    context: PageContext
    rollups: Rollups
    domains: Domains

    @page(app, METRICS, access="see_figures")
    async def show(self, request: PageRequest) -> bytes:
        chosen = await self.selection(request)
        domains, domain, days, since, until, limit = (
            chosen.domains, chosen.domain, chosen.days, chosen.since, chosen.until, chosen.limit,
        )  # fmt: skip
        counts = await self._counts(request, chosen)
        before = await self.rollups.counts(request.account_id, counted(since - (until - since), since, domains=limit))
        by_domain_counts = await self.rollups.counts(request.account_id, counted(since, until, by_domain=True))
        engaged = attrs.evolve(counted(since, until, domains=limit), types=ENGAGED)
        engaged_counts = await self.rollups.counts(request.account_id, engaged)
        programs, delivered = request.query("programs") != "no", rates(counts).delivered
        by_domain = {d.id: rates(count for count in by_domain_counts if count.domain_id == d.id) for d in domains}
        return request.render(
            "metrics.html",
            rates=rates(counts),
            before=rates(before),
            query=chosen.query,
            table=[(d, by_domain[d.id]) for d in domains if by_domain[d.id].sent],
            domains=domains,
            domain=domain,
            opened=Engagement.of("opened", engaged_counts, delivered, programs=programs),
            clicked=Engagement.of("clicked", engaged_counts, delivered, programs=programs),
            tracked=bool(engaged_counts) or any(each.open_tracking or each.click_tracking for each in ([domain] if domain else domains)),
            programs=programs,
            broadcasts=await self._broadcasts(request, since, until, limit, programs=programs),
            days=days,
            ranges=RANGES,
            zone=chosen.zone_name,
            zones=ZONES if chosen.zone_name in ZONES else (*ZONES, chosen.zone_name),  # the query may name any zone
            bounce_danger=BOUNCE_DANGER,
            complaint_danger=COMPLAINT_DANGER,
            rows=[(at, _row(of)) for at, of in _steps(counts, chosen)],
        )

    @page(app, f"{METRICS}/csv", access="see_figures")
    async def csv(self, request: PageRequest) -> bytes:
        """The figures of each hour or day of the period, as a file."""
        chosen = await self.selection(request)
        rows = [
            (at.isoformat(), of.sent, of.delivered, *of.kinds, of.complained, of.unsent)
            for at, of in _steps(await self._counts(request, chosen), chosen)
        ]
        request.set_header("Content-Disposition", f'attachment; filename="metrics-{chosen.days}-days.csv"')
        return request.send(csv_file.lines([COLUMNS, *rows]), "text/csv; charset=utf-8")

    async def selection(self, request: PageRequest) -> Selection:
        """What the query chose."""
        domains, _ = await self.domains.list(request.account_id)
        days = request.query("days") if request.query("days") in RANGES else "7"
        zone_name, zone = _zone(request.query("zone") or request.zone.key)
        unit: Unit = "hour" if days == "1" else "day"
        until = ceiling(self.context.now(), unit, zone)
        domain = request.selected("domain", domains, "domain")
        return Selection(domains, domain, days, zone_name, zone, unit, until - timedelta(days=int(days)), until)

    async def _counts(self, request: PageRequest, chosen: Selection) -> Sequence[Count]:
        wanted = counted(chosen.since, chosen.until, chosen.unit, chosen.zone_name, by_period=True, domains=chosen.limit)
        return await self.rollups.counts(request.account_id, wanted)

    async def _broadcasts(
        self, request: PageRequest, since: datetime, until: datetime, domains: Sequence[UUID] | None, *, programs: bool
    ) -> list[BroadcastRow]:  # fmt: skip
        """The newest broadcasts with emails in the period."""
        wanted = counted(since, until, domains=domains, of_broadcasts=True, by_broadcast=True)
        wanted = attrs.evolve(wanted, types=(*TYPES, *ENGAGED, UNSUBSCRIBED))
        by_id: dict[UUID, list[Count]] = {}
        for count in await self.rollups.counts(request.account_id, wanted):
            if count.broadcast_id is not None:
                by_id.setdefault(count.broadcast_id, []).append(count)
        names = await self.rollups.broadcasts(request.account_id, sorted(by_id, reverse=True)[:BROADCASTS])
        return [BroadcastRow.of(names[id_], by_id[id_], programs=programs) for id_ in sorted(names, reverse=True)]


def _steps(counts: Sequence[Count], chosen: Selection) -> list[tuple[datetime, Rates]]:
    """Every hour or day of the period with its rates, including empty ones."""
    by: dict[object, list[Count]] = {}
    for count in counts:
        by.setdefault(count.hour if chosen.unit == "hour" else count.day, []).append(count)
    steps = []
    at = chosen.since
    while at < chosen.until:
        local = at.astimezone(chosen.zone)
        steps.append((local, rates(by.get(at if chosen.unit == "hour" else local.date(), ()))))
        at += timedelta(hours=1) if chosen.unit == "hour" else timedelta(days=1)
    return steps


def _row(of: Rates) -> list[tuple[str, float | None]]:
    """For each column, the text to show and the number itself."""
    counts: list[tuple[str, float | None]] = [(f"{count:,}", count) for count in (of.delivered, of.bounced, of.unsent)]
    shares = ((of.deliverability, 1), (of.bounce, 2), (of.complaint, 3))
    return counts + [("–", None) if share is None else (f"{share:.{digits}f}%", round(share, 4)) for share, digits in shares]


def ceiling(now: datetime, unit: Unit, zone: tzinfo) -> datetime:
    """The end of the current hour, or of the current day in `zone`."""
    if unit == "hour":
        return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def _zone(name: str) -> tuple[str, tzinfo]:
    """Only zones that the database knows too: not all files of this machine's zones."""
    return (name, zones.named(name)) if name in zones.names() else ("UTC", UTC)


def _share(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
