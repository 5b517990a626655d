"""The table of source addresses in memory, and processes that share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from mailsvc.clock import utc
from mailsvc.delivery.connection.pools import Pools
from mailsvc.delivery.connection.source_state import SourceState
from mailsvc.delivery.connection.source_upkeep import SourceUpkeep
from mailsvc.delivery.connection.sources import Sources, parse
from mailsvc.delivery.shaping import Limits, Provider, Shaping
from mailsvc.net.dns import Resolver
from mailsvc.store.queue.sources import StoredSource
from tests.delivery.fakes import START, DeliveryRig, clock_at

BIG = Shaping({"big": Provider("big", (".big.example",), Limits(), warm_up=(4, 8, 16))}, warm_up=(2, 4))
TODAY = utc(clock_at(START)).date()


class Table:
    """store/queue/sources.SourceTable for all processes of a region. `writes` counts reservations."""

    def __init__(self) -> None:
        self.days: Counter[tuple[str, str, date]] = Counter()
        self.stored: dict[str, StoredSource] = {}
        self.checked_at: dict[str, datetime] = {}
        self.writes = 0

    async def announce(self, sources: Sequence[tuple[str, str, date | None]], now: datetime) -> None:
        for address, pool, since in sources:
            before = self.stored.get(address)
            listed = before.listed if before is not None else ()
            self.stored[address] = StoredSource(address, pool, since, listed, None, now)

    async def read(self) -> list[StoredSource]:
        return list(self.stored.values())

    async def reserve(self, address: str, provider: str, day: date, most: int, wanted: int) -> tuple[int, int]:
        self.writes += 1
        key = address, provider, day
        granted = max(0, min(wanted, most - self.days[key]))
        self.days[key] += granted
        return granted, self.days[key]

    async def give_back(self, address: str, provider: str, day: date, count: int) -> None:
        self.days[address, provider, day] -= count

    async def taken(self, day: date) -> Mapping[tuple[str, str], int]:
        return {(address, provider): taken for (address, provider, of), taken in self.days.items() if of == day}

    async def forget(self, now: datetime) -> int:
        return 0


class PoolRows:
    """store/queue/sources.PoolTable."""

    def __init__(self, assigned: dict[UUID, str]) -> None:
        self.assigned = assigned

    async def read(self) -> Mapping[UUID, str]:
        return self.assigned


def state_of(
    clock: Any, table: Any, texts: Sequence[str], shaping: Shaping = BIG, overflow: Mapping[str, str] | None = None
) -> SourceState:
    return SourceState(clock, table, parse(texts), shaping, overflow)


class SourcesRig(DeliveryRig):
    """A process with source addresses. `refresh` is what it does every few seconds."""

    def __init__(
        self,
        texts: Sequence[str],
        *,
        table: Table | None = None,
        overflow: Mapping[str, str] | None = None,
        assigned: dict[UUID, str] | None = None,
        bulk: str = "",
        clock: Any = None,
        **settings: Any,
    ) -> None:
        clock = clock or clock_at(START)
        self.table = table or Table()
        self.state = state_of(clock, self.table, texts, BIG, overflow)
        self.pools = Pools(PoolRows(assigned or {}), bulk)  # type: ignore[arg-type]
        sources = Sources(parse(texts), lambda found, weights: found[0], self.state)
        super().__init__(BIG, sources=sources, pools=self.pools, clock=clock, **settings)
        self.upkeep = SourceUpkeep(clock, self.state, self.table, self.delivery.holds, Resolver(clock), ())  # type: ignore[arg-type]
        self.refresh()

    def refresh(self) -> None:
        from twisted.internet.defer import Deferred

        for work in (self.pools.refresh(), self.upkeep.refresh()):
            assert Deferred.fromCoroutine(work).called
