"""The state of the source addresses of a region in one process: which block lists have them, and how much new ones may still send today.

A day's emails are counted in the database, for all processes. A process reserves them in blocks, one for a connection; what a connection
does not use goes to the next one from the same address to the same provider. Nothing is counted for sources that are warm. What follows
from these facts: admission/sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from mailsvc.clock import utc
from mailsvc.delivery.admission.sources import SourceDecision, SourceFacts, block, decide
from mailsvc.delivery.connection.tls_policy import Source
from mailsvc.delivery.shaping import Shaping, pool_of
from mailsvc.store.queue.sources import ABSENT, SourceTable, StoredSource


class SourceState:
    """`own`: the sources of this process. `overflow`: by pool, the pool whose sources take what its own cannot."""

    def __init__(
        self, clock: Any, table: SourceTable, own: Sequence[Source], shaping: Shaping, overflow: Mapping[str, str] | None = None
    ) -> None:
        self._clock, self._table, self._shaping = clock, table, shaping
        self._own = {source.address: source for source in own}
        self._overflow = dict(overflow or {})
        self._stored: dict[str, StoredSource] = {}
        self._day = date.min
        self._taken: dict[tuple[str, str], int] = {}  # by address and provider: reserved today, by all processes
        self._unused: dict[tuple[str, str], int] = {}  # the same: reserved by this process for connections that did not use them
        self._simple = all(not source.pool and source.since is None for source in own)

    @property
    def simple(self) -> bool:
        """Whether there is nothing to decide: one pool, all of it warm, nothing on a block list."""
        return self._simple and not self.listed

    @property
    def listed(self) -> dict[str, Sequence[str]]:
        """Own sources that are on block lists."""
        return {address: stored.listed for address in self._own if (stored := self._stored.get(address)) is not None and stored.listed}

    @property
    def own(self) -> Sequence[Source]:
        return list(self._own.values())

    def sent_today(self) -> list[tuple[str, str, int, int]]:
        """Of own sources that warm up: the address, the provider, emails reserved by all processes, and the day's limit."""
        today = self._today()
        found = []
        for (address, provider), taken in self._taken.items():
            own = self._own.get(address)
            limit = None if own is None else self._limit(own.since, provider, today)
            if limit is not None:
                found.append((address, provider, taken, limit))
        return sorted(found)

    @property
    def _now(self) -> datetime:
        return utc(self._clock)

    async def refresh(self) -> None:
        """Read what other processes have written."""
        self._stored = {each.address: each for each in await self._table.read()}
        if not self._simple:
            day = self._today()
            self._taken = dict(await self._table.taken(day))

    async def announce(self) -> None:
        """Tell other processes which sources this one has."""
        await self._table.announce(sorted((each.address, each.pool, each.since) for each in self._own.values()), self._now)

    def provider(self, destination: str) -> str:
        """Under which name mail to a destination is counted."""
        return self._shaping.warm_up_name(destination)

    def decide(self, destination: str, six: bool | None = None) -> SourceDecision:
        """Which sources may send to a destination. `six`: those with an IPv6 address, or without; None: any."""
        now, provider, pool = self._now, self.provider(destination), pool_of(destination)
        today = self._today()
        other = self._overflow.get(pool)
        overflow = [] if other is None else self._facts(other, provider, six, today, now)
        return decide(self._facts(pool, provider, six, today, now), overflow, now)

    async def reserve(self, address: str, destination: str) -> tuple[int, date]:
        """Emails that a connection from a source that warms up may send, and of which day. 0: as many as today's have been sent."""
        provider, day = self.provider(destination), self._today()
        key = address, provider
        if unused := self._unused.pop(key, 0):
            return unused, day
        most = self._limit(self._own[address].since, provider, day) or 0
        granted, self._taken[key] = await self._table.reserve(address, provider, day, most, block(most))
        return granted, day

    def give_back(self, address: str, destination: str, count: int, day: date | None) -> None:
        """A connection has not used these of that day."""
        if count > 0 and day == self._today():
            key = address, self.provider(destination)
            self._unused[key] = self._unused.get(key, 0) + count

    async def close(self) -> None:
        """At shutdown: other processes may use what this one has not."""
        unused, self._unused = self._unused, {}
        for (address, provider), count in unused.items():
            await self._table.give_back(address, provider, self._day, count)

    def _today(self) -> date:
        """A new day begins with new counts."""
        today = self._now.astimezone(UTC).date()
        if today != self._day:
            self._day, self._taken, self._unused = today, {}, {}
        return today

    def _limit(self, since: date | None, provider: str, today: date) -> int | None:
        return None if since is None else self._shaping.warm_up_limit(provider, (today - since).days + 1)

    def _facts(self, pool: str, provider: str, six: bool | None, today: date, now: datetime) -> list[SourceFacts]:
        found = []
        for address in {**self._own, **self._stored}:
            own, stored = self._own.get(address), self._stored.get(address)
            known = own or stored
            assert known is not None
            if known.pool != pool or (six is not None and (":" in address) != six):
                continue
            if own is None and stored is not None and now - stored.seen_at > ABSENT:
                continue
            limit, key = self._limit(known.since, provider, today), (address, provider)
            left = None if limit is None else max(0, limit - self._taken.get(key, 0)) + self._unused.get(key, 0)
            listed = stored is not None and bool(stored.listed)
            begins = known.since if known.since is not None and known.since > today else None
            found.append(SourceFacts(address, 1 if own is None else own.weight, own is not None, listed, left, begins))
        return found
