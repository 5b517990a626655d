"""Which source addresses may send an email to a provider now, and why none may. Pure.

A source that warms up sends a limited number of emails a day to each provider; a source on a block list sends nothing. Where the facts
come from: connection/source_state. Which of the usable sources a connection gets: connection/sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

import attrs

from mailsvc.delivery.shaping import OTHERS

LISTED_CHECKED = timedelta(hours=1)  # how often the block lists are asked about a source that is on one
SHORT_WAIT = timedelta(minutes=10)  # for a pool without sources; waits of at most this are not ended early
_BLOCKS = 20  # in which a day's emails are reserved, if they are then neither smaller nor larger than …
_SMALLEST, _LARGEST = 5, 500

SourceReason = Literal["admitted", "other process", "source warm-up", "source not begun", "sources listed", "no source"]


@attrs.frozen
class SourceFacts:
    """A source address of a pool. `here`: this process has it, and not only another one of the region.

    `left`: emails that it may still send to the provider today. None: any number, because it is warm. `begins`: the first day of its
    warm-up, if it is still to come.
    """

    address: str
    weight: int = 1
    here: bool = True
    listed: bool = False
    left: int | None = None
    begins: date | None = None

    @property
    def usable(self) -> bool:
        return not self.listed and self.left != 0


@attrs.frozen
class SourceDecision:
    """`usable` sources of this process. If there are none: why, and `until` when."""

    usable: tuple[SourceFacts, ...]
    reason: SourceReason
    until: datetime | None = None

    @property
    def admitted(self) -> bool:
        return bool(self.usable)


def decide(pool: Sequence[SourceFacts], overflow: Sequence[SourceFacts], now: datetime) -> SourceDecision:
    """Which sources may send: those of the mail's own pool, else those of the pool that takes its overflow."""
    for facts in (pool, overflow):
        usable = tuple(each for each in facts if each.usable and each.here)
        if usable:
            return SourceDecision(usable, "admitted")
        if any(each.usable for each in facts):
            return SourceDecision((), "other process")
    found = (*pool, *overflow)
    begins = [each.begins for each in found if not each.listed]
    if begins:
        first = min((day for day in begins if day is not None), default=None)
        if first is not None and None not in begins:
            return SourceDecision((), "source not begun", datetime.combine(first, time(), UTC))
        return SourceDecision((), "source warm-up", next_day(now))
    if found:
        return SourceDecision((), "sources listed", now + LISTED_CHECKED)
    return SourceDecision((), "no source", now + SHORT_WAIT)


def sentence(reason: SourceReason, pool: str, provider: str) -> str:
    """The reason of waiting mail, for people. `provider`: the name under which a day's emails are counted."""
    sources = f"source addresses of the pool {pool}" if pool else "source addresses"
    to = "other providers" if provider == OTHERS else provider
    match reason:
        case "source warm-up":
            return f"Source warm-up: the {sources} have sent as many emails to {to} as they may today. They continue tomorrow (UTC)."
        case "source not begun":
            return f"Source warm-up: the {sources} send nothing before the first day of their warm-up."
        case "sources listed":
            return f"All {sources} are on block lists. Mail waits until one of them is removed from the lists."
        case "no source":
            return f"No running process has one of the {sources} for the receiving server (IPv4 or IPv6)."
    return "Another process has the source address for it."


def next_day(now: datetime) -> datetime:
    """When the next day begins, in UTC."""
    return datetime.combine(now.astimezone(UTC).date() + timedelta(days=1), time(), UTC)


def block(limit: int) -> int:
    """How many of a day's emails a process reserves at once, for one connection: few, so that other processes find some."""
    return min(limit, max(_SMALLEST, min(_LARGEST, limit // _BLOCKS)))
