"""The figures of a broadcast while it is sent and afterwards: how far it has come, when it ends, what happened by hour or day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import attrs

from mailsvc.dashboard.broadcasts.listing import counted
from mailsvc.dashboard.metrics import BroadcastRow
from mailsvc.http.resources.metrics import summed
from mailsvc.store.broadcasts.overview import Overview, Waiting
from mailsvc.store.broadcasts.recipients import ClickedLink, Recipients
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.events.rollups import Count, Rollups
from mailsvc.store.paging import Page

LINKS = 10
HOURLY = timedelta(days=3)  # a longer time is shown by day
MOST_DAYS = 92
AFTERWARDS = timedelta(minutes=10)  # how long the page of a sent broadcast keeps updating
# Columns of the chart: name and metric.
COLUMNS = (
    ("Delivered", "delivered"),
    ("Bounced", "bounced"),
    ("Complained", "complained"),
    ("Opened", "unique_opened"),
    ("Clicked", "unique_clicked"),
    ("Unsubscribed", "unsubscribed"),
)
Row = tuple[datetime, list[tuple[str, int]]]


@attrs.frozen
class Part:
    """A part of the bar that shows how far it has come. `start` and `share` are percentages of the bar."""

    name: str
    tone: str
    count: int
    start: float
    share: float


@attrs.frozen
class Result:
    """`shares`: in percent, of those that a server accepted or bounced, or of the delivered ones. `refresh`: seconds after which the page
    updates, 0 if it does not.
    """

    segment: str | None
    topic: str | None
    sums: Mapping[str, int]
    row: BroadcastRow
    shares: Mapping[str, float | None]
    waiting: Waiting
    parts: Sequence[Part]
    ends: datetime | None
    rows: Sequence[Row]
    hourly: bool
    links: Sequence[ClickedLink]
    refresh: int


@attrs.define(eq=False)
class Results:
    overview: Overview
    recipients: Recipients
    rollups: Rollups

    async def of(self, found: Broadcast, now: datetime) -> Result:
        segment, topic = await self.overview.names(found)
        counts = await self.rollups.counts(found.account_id, counted(now, [found.id], by_hour=True))
        links, _ = await self.recipients.clicked_links(found.account_id, found.id, Page(LINKS))
        waiting = await self.overview.waiting(found)
        sums = _sums(counts)
        since = found.started_at or found.created_at
        zone, until = now.tzinfo, max([count.hour for count in counts if count.hour is not None] + [since])
        return Result(
            segment, topic, sums, BroadcastRow.of(found.name, counts, programs=True), _shares(sums), waiting, bar(found, sums, waiting),
            expected_end(found, waiting, now), _rows(counts, since, until, zone), until - since <= HOURLY, links, _refresh(found, now),
        )  # fmt: skip


def expected_end(found: Broadcast, waiting: Waiting, now: datetime) -> datetime | None:
    """When everybody was tried, at the rate so far. None if it cannot be told: nothing was sent yet, or something holds it up."""
    if found.status != "queued" or found.started_at is None or found.total is None or found.paused_at or found.reason:
        return None
    elapsed, done = (now - found.started_at).total_seconds(), found.passed - waiting.untried
    if done <= 0 or elapsed <= 0:
        return None
    return now + timedelta(seconds=max(0, found.total - done) * elapsed / done)


def bar(found: Broadcast, sums: Mapping[str, int], waiting: Waiting) -> list[Part]:
    """What happened to the segment's contacts so far. Of a canceled broadcast: also how many get nothing because of that."""
    ended = sums["delivered"] + sums["bounced"] + sums["failed"] + sums["suppressed"]
    canceled = found.queued - ended - waiting.deferred - waiting.untried + (found.total or 0) - found.passed
    counts = (
        ("Delivered", "good", sums["delivered"]),
        ("Bounced or failed", "bad", sums["bounced"] + sums["failed"]),
        ("Deferred", "warn", waiting.deferred),
        ("In the queue", "info", waiting.untried),
        ("Not processed yet", "rest", max(0, (found.total or 0) - found.passed) if found.status == "queued" else 0),
        ("Not sent to", "quiet", max(0, found.passed - found.queued) + sums["suppressed"]),
        ("Canceled", "rest", max(0, canceled) if found.status == "canceled" else 0),
    )
    whole = sum(count for _, _, count in counts)
    parts: list[Part] = []
    start = 0.0
    for name, tone, count in counts:
        if count:
            share = 100 * count / whole
            parts.append(Part(name, tone, count, round(start, 3), round(share, 3)))
            start += share
    return parts


def _shares(sums: Mapping[str, int]) -> dict[str, float | None]:
    tried, delivered = sums["delivered"] + sums["bounced"], sums["delivered"]
    wholes = {"delivered": tried, "bounced": tried, "complained": delivered, "unsubscribed": delivered}
    return {name: 100 * sums[name] / whole if whole else None for name, whole in wholes.items()}


def _sums(counts: Sequence[Count]) -> dict[str, int]:
    by_type: dict[str, int] = {}
    for count in counts:
        by_type[count.type] = by_type.get(count.type, 0) + count.count
    return summed(by_type)


def _rows(counts: Sequence[Count], since: datetime, until: datetime, zone: tzinfo | None) -> list[Row]:
    """Every hour, or every day of a longer time, with its numbers, in this zone; at least two, which a chart needs."""
    hourly = until - since <= HOURLY
    by: dict[datetime, list[Count]] = {}
    for count in counts:
        if count.hour is not None:
            by.setdefault(_begin(count.hour, zone, hourly=hourly), []).append(count)
    begin, last = _begin(since, zone, hourly=hourly), _begin(until, zone, hourly=hourly)
    step = timedelta(hours=1) if hourly else timedelta(days=1)
    number = min(max(2, int((last - begin) / step) + 1), MOST_DAYS)
    found = []
    for at in (begin + place * step for place in range(number)):
        sums = _sums(by.get(at, ()))
        shown = at.astimezone(zone) if hourly else at.replace(tzinfo=zone)
        found.append((shown, [(f"{sums[metric]:,}", sums[metric]) for _, metric in COLUMNS]))
    return found


def _begin(at: datetime, zone: tzinfo | None, *, hourly: bool) -> datetime:
    """The hour of a moment, in UTC, or the beginning of its day in `zone`, without one: days have 23 or 25 hours, too."""
    if hourly:
        return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return at.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)


def _refresh(found: Broadcast, now: datetime) -> int:
    if found.status == "queued" and found.paused_at is None:
        return 3
    ended = found.sent_at or found.ended_at
    return 10 if ended is not None and now - ended < AFTERWARDS else 0
