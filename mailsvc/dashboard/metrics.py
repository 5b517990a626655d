"""Metrics: how much was sent, what became of it, and whether bounces and complaints are where they harm. From rollups alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs

from mailsvc.dashboard import charts
from mailsvc.dashboard.charts import Step
from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import Visit, area, page
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains import Domains
from mailsvc.store.rollups import Count, Rollups

METRICS = f"{HOME}/metrics"
RANGES = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days"}
BOUNCE_DANGER, COMPLAINT_DANGER = 4.0, 0.08  # percent, where large mailbox providers begin to refuse
_KINDS = {"email.delivered": "delivered", "email.bounced": "bounced"}
HOUR, DAY = 3600, 86400


@attrs.frozen
class Rates:
    """In percent of what was finished; None where nothing was."""

    sent: int
    delivered: int
    bounced: int
    complained: int
    deliverability: float | None
    bounce: float | None
    complaint: float | None


def rates(counts: Mapping[str, int]) -> Rates:
    delivered, bounced, complained = (counts.get(f"email.{name}", 0) for name in ("delivered", "bounced", "complained"))
    finished = delivered + bounced
    return Rates(
        counts.get("email.sent", 0), delivered, bounced, complained,
        _share(delivered, finished), _share(bounced, finished), _share(complained, delivered),
    )  # fmt: skip


@attrs.define(eq=False)
class Metrics:
    app = area()
    desk: Desk
    rollups: Rollups
    domains: Domains

    @page(app, METRICS)
    async def show(self, visit: Visit) -> bytes:
        domains, _ = await self.domains.list(visit.account_id)
        domain = next((d for d in domains if str(d.id) == visit.query("domain")), None)
        days = visit.query("days") if visit.query("days") in RANGES else "7"
        zone_name, zone = _zone(visit.query("zone"))
        step = HOUR if days == "1" else DAY
        until = _ceiling(self.desk.now(), step, zone)
        since = until - timedelta(days=int(days))
        limit = domain.id if domain else None
        totals = await self.rollups.totals(visit.account_id, since, until, limit)
        counts = await self.rollups.series(visit.account_id, since, until, step, limit)
        by_domain = await self.rollups.by_domain(visit.account_id, since, until)
        steps = _steps(counts, since, until, step, zone)
        return visit.render(
            "metrics.html",
            rates=rates(totals),
            table=[(d, rates(by_domain[d.id])) for d in domains if d.id in by_domain],
            domains=domains,
            domain=domain,
            days=days,
            ranges=RANGES,
            zone=zone_name,
            bounce_danger=BOUNCE_DANGER,
            complaint_danger=COMPLAINT_DANGER,
            volume=charts.bars(steps, ("delivered", "bounced"), f"Emails by what became of them, {RANGES[days]}"),
            bounces=charts.line(steps, "bounce rate", "Bounce rate over time", BOUNCE_DANGER),
            complaints=charts.line(steps, "complaint rate", "Complaint rate over time", COMPLAINT_DANGER),
        )


def _steps(counts: Sequence[Count], since: datetime, until: datetime, seconds: int, zone: tzinfo) -> list[Step]:
    by: dict[datetime, dict[str, int]] = {}
    for count in counts:
        by.setdefault(count.at, {})[count.type] = count.count
    steps = []
    at = since
    while at < until:
        found = by.get(at, {})
        of = rates(found)
        values = {kind: float(found.get(type_, 0)) for type_, kind in _KINDS.items()}
        values |= {name: value for name, value in (("bounce rate", of.bounce), ("complaint rate", of.complaint)) if value is not None}
        local = at.astimezone(zone)
        said = f"{of.delivered} delivered, {of.bounced} bounced"
        label = f"{local:%H:%M}" if seconds == HOUR else f"{local.day} {local:%b}"
        steps.append(Step(label, f"{local:%Y-%m-%d %H:%M}: {said}", values))
        at += timedelta(seconds=seconds)
    return steps


def _ceiling(now: datetime, seconds: int, zone: tzinfo) -> datetime:
    """The end of this hour, or of this day where the reader is."""
    local = now.astimezone(zone)
    if seconds == HOUR:
        return local.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return local.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def _zone(name: str) -> tuple[str, tzinfo]:
    try:
        return (name, ZoneInfo(name)) if name else ("UTC", UTC)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC", UTC


def _share(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
