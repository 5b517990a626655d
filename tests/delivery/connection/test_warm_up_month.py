"""A month of a new source address, simulated by the hour: two processes that are restarted, real decisions, a clock that is passed in."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any

import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from mailsvc.clock import utc
from mailsvc.delivery.connection.sources import Chosen, Refused, Sources, parse
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import SourceTable
from mailsvc.wiring import provider_rules
from tests.delivery.connection.source_fakes import TODAY, Table, state_of
from tests.delivery.fakes import START, clock_at
from tests.store.fixtures import REGION

SHAPING = provider_rules(None)
NEW, WARM = f"192.0.2.1 new.example since={TODAY}", "192.0.2.2 warm.example"
GMAIL, SMALL = "google/gmail-smtp-in.l.google.com", "mx.small.example"
OUTLOOK, YAHOO = "microsoft-consumer/outlook-com.olc.protection.outlook.com", "yahoo/mta5.am0.yahoodns.net"
PER_CONNECTION = 100


class Process:
    def __init__(self, clock: Any, table: Table, texts: list[str], turn: int = 0) -> None:
        self.turn = turn
        self.state = state_of(clock, table, texts, SHAPING, None)
        self.sources = Sources(parse(texts), self.pick, self.state)

    def pick(self, found: Any, weights: Any) -> Any:
        self.turn += 1
        return found[self.turn % len(found)]

    async def send(self, destination: str, count: int) -> Counter[str]:
        """Emails by source over as many connections as that takes. What no source may send is under its reason."""
        sent: Counter[str] = Counter()
        while count:
            chosen = await self.sources.choose(destination, "198.51.99.1", None)
            if isinstance(chosen, Refused):
                assert chosen.until is not None
                sent[chosen.reason.partition(":")[0]] += count
                break
            assert isinstance(chosen, Chosen) and chosen.source is not None
            part = min(count, PER_CONNECTION, chosen.most or PER_CONNECTION)
            sent[chosen.source.address] += part
            self.sources.give_back(destination, chosen, part)
            count -= part
        return sent


async def traffic(table: Any, texts: list[str], hourly: dict[str, int], days: int) -> dict[tuple[date, str], Counter[str]]:
    """So many emails an hour to each destination, by both processes together. What was sent by day and destination."""
    clock = clock_at(START - START % 86400)
    processes: list[Process] = []
    found: dict[tuple[date, str], Counter[str]] = {}
    for hour in range(24 * days):
        if hour % 50 == 0:
            if processes:  # one ends in order, the other is killed
                await processes[0].state.close()
            processes = [Process(clock, table, texts, n) for n in range(2)]
        today = utc(clock).date()
        for process in processes:
            await process.state.refresh()
        for destination, count in hourly.items():
            sent = found.setdefault((today, destination), Counter())
            for n, process in enumerate(processes):
                sent.update(await process.send(destination, (count + n) // 2))
        clock.advance(3600.0)
    return found


def month(texts: list[str], hourly: dict[str, int], days: int = 30) -> tuple[dict[tuple[date, str], Counter[str]], Table]:
    """The same with a table in memory."""
    table, found = Table(), list[Any]()
    Deferred.fromCoroutine(traffic(table, texts, hourly, days)).addCallback(found.append)
    return found[0], table


def schedule(destination: str, day: int) -> int | None:
    return SHAPING.warm_up_limit(SHAPING.warm_up_name(destination), day)


def test_a_new_source_reaches_its_schedule_every_day_and_never_exceeds_it() -> None:
    found, table = month([NEW, WARM], {GMAIL: 6000, SMALL: 400})
    days = sorted({day for day, _ in found})
    for number, day in enumerate(days, 1):
        limit, of_gmail, of_small = schedule(GMAIL, number), found[day, GMAIL], found[day, SMALL]
        assert of_gmail.total() == 24 * 6000 and of_small.total() == 24 * 400, "the warm source takes the overflow"
        if limit is not None:
            assert 0.9 * min(limit, 24 * 3000) <= of_gmail["192.0.2.1"] <= limit, (number, of_gmail)
            assert of_small["192.0.2.1"] <= (schedule(SMALL, number) or 0)
    assert schedule(GMAIL, 28) is not None and schedule(GMAIL, 29) is None
    assert table.writes < 28 * 250, "a reservation is for many emails"
    assert not [day for _, _, day in table.days if day > TODAY + timedelta(days=27)], "a warm source is not counted"


def test_alone_it_sends_each_provider_s_schedule_and_the_rest_waits() -> None:
    found, _ = month([NEW], dict.fromkeys((GMAIL, OUTLOOK, YAHOO, SMALL), 1500), days=14)
    for number, day in enumerate(sorted({day for day, _ in found}), 1):
        for destination in (GMAIL, OUTLOOK, YAHOO, SMALL):
            limit, sent = schedule(destination, number) or 0, found[day, destination]
            assert 0.9 * limit <= sent["192.0.2.1"] <= limit, (number, destination)
            assert sent["Source warm-up"] > 0
            assert sent.total() == 24 * 1500
    first = [found[TODAY, destination]["192.0.2.1"] for destination in (GMAIL, OUTLOOK, YAHOO, SMALL)]
    assert first == [147, 110, 73, 147]


@given(st.integers(0, 300), st.integers(0, 300))
def test_whatever_the_traffic_no_day_exceeds_its_limit(gmail: int, small: int) -> None:
    found, _ = month([NEW, WARM], {GMAIL: gmail, SMALL: small}, days=4)
    for (day, destination), sent in found.items():
        assert sent["192.0.2.1"] <= (schedule(destination, (day - TODAY).days + 1) or 0)
        assert not sent["Source warm-up"]


@pytest_twisted.ensureDeferred
async def test_the_same_counts_in_the_database(pool: Pool) -> None:
    found = await traffic(SourceTable(pool, REGION), [NEW, WARM], {GMAIL: 6000, SMALL: 20}, 14)
    for number, day in enumerate(sorted({day for day, _ in found}), 1):
        limit, of_gmail = schedule(GMAIL, number) or 0, found[day, GMAIL]
        assert of_gmail.total() == 24 * 6000 and 0.9 * limit <= of_gmail["192.0.2.1"] <= limit
