"""Destinations that take no mail for a time, or only slowly: what all processes know, what this one found, how the rest grows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.retry import Random, rest
from mailsvc.delivery.shaping import provider_of
from mailsvc.store.queue.claims import Hold, HoldState, Slowdown
from mailsvc.store.queue.holds import EVERYTHING

FORGOTTEN = timedelta(days=1)  # after a backoff's end nobody tried: its failures say nothing any more
T = TypeVar("T")
Spawn = Callable[[Awaitable[None]], object]


class HoldStore(Protocol):
    """The destinations that are held, in the store."""

    async def hold(self, region: str, destination: str, state: HoldState, reason: str, until: datetime, failures: int) -> object: ...

    async def lift(self, region: str, destination: str) -> object: ...

    async def holds(self, region: str) -> Mapping[str, Hold]: ...

    async def slow(self, region: str, name: str, slowdown: Slowdown, now: datetime) -> object: ...

    async def slowed(self, region: str, now: datetime) -> Mapping[str, Slowdown]: ...


class Holds:
    """One region's. Reading is from memory; `refresh` follows what others wrote."""

    log = Logger()

    def __init__(self, clock: Any, store: HoldStore, region: str, terms: DeliveryLimits, random: Random, spawn: Spawn) -> None:
        self._clock, self._store, self._region, self._terms, self._random, self._spawn = clock, store, region, terms, random, spawn
        self._known: dict[str, Hold] = {}
        self._slowed: dict[str, Slowdown] = {}
        self._writing: dict[str, int] = {}

    def held(self, destination: str) -> bool:
        """It, all of its provider, or everything."""
        if not self._known:
            return False
        now, names = pace.now(self._clock), {destination, provider_of(destination), EVERYTHING}
        return any(hold is not None and hold.until > now for hold in map(self._known.get, names))

    def failures(self, destination: str) -> int:
        """How often in a row it could not be used, lately."""
        hold = self._known.get(destination)
        if hold is None or pace.now(self._clock) - hold.until > FORGOTTEN:
            return 0
        return hold.failures

    def names(self) -> list[str]:
        """Destinations that are held now."""
        return [name for name in self._known if self.held(name)]

    async def refresh(self) -> None:
        self._known = self._newer(dict(await self._store.holds(self._region)), self._known)
        self._slowed = self._newer(dict(await self._store.slowed(self._region, pace.now(self._clock))), self._slowed)

    def _newer(self, found: dict[str, T], known: dict[str, T]) -> dict[str, T]:
        """What was read, but for what this process is just writing."""
        for name in self._writing:
            found.pop(name, None)
            if name in known:
                found[name] = known[name]
        return found

    def fail(self, destination: str, reason: str) -> None:
        """The destination could not be used: it rests, longer each time. A pause that somebody ordered stays as it is."""
        if self.held(destination):
            return
        failures = self.failures(destination) + 1
        seconds = rest(failures, self._terms.hold_first, self._terms.hold_longest, self._random)
        until = pace.now(self._clock) + timedelta(seconds=seconds)
        hold = Hold("backoff", reason, until, failures)
        self._known[destination] = hold
        self.log.info("{destination} rests for {seconds:.0f} s: {reason}", destination=destination, seconds=seconds, reason=reason)
        self._write(destination, lambda: self._store.hold(self._region, destination, hold.state, reason, until, failures))

    def pause(self, name: str, reason: str, seconds: float) -> None:
        """Nothing goes to a destination, or to any of a provider's, whoever delivers. One that lasts longer already stays."""
        until = pace.now(self._clock) + timedelta(seconds=seconds)
        known = self._known.get(name)
        if known is not None and known.until >= until:
            return
        hold = self._known[name] = Hold("paused", reason, until, 0)
        self.log.info("{name} is paused for {seconds:.0f} s: {reason}", name=name, seconds=seconds, reason=reason)
        self._write(name, lambda: self._store.hold(self._region, name, hold.state, reason, until, 0))

    def slowdown(self, name: str) -> Slowdown | None:
        """How slowly a destination, or a provider, is sent to now."""
        found = self._slowed.get(name)
        return found if found is not None and found.until > pace.now(self._clock) else None

    def slow(self, name: str, per_minute: float, reason: str, seconds: float) -> None:
        """A destination, or all of a provider's, get so much a minute, whoever delivers. Written again when a tenth of it is over."""
        until = pace.now(self._clock) + timedelta(seconds=seconds)
        known = self.slowdown(name)
        if known is not None:
            if known.per_minute <= per_minute and known.until >= until - timedelta(seconds=seconds / 10):
                return
            per_minute, until = min(known.per_minute, per_minute), max(known.until, until)
        slowdown = self._slowed[name] = Slowdown(per_minute, reason, until)
        self.log.info("{name} gets {rate:g} emails a minute: {reason}", name=name, rate=per_minute, reason=reason)
        self._write(name, lambda: self._store.slow(self._region, name, slowdown, pace.now(self._clock)))

    def lift(self, destination: str) -> None:
        """Mail went through. A pause is lifted by whoever ordered it."""
        hold = self._known.get(destination)
        if hold is not None and hold.state == "backoff":
            del self._known[destination]
            self._write(destination, lambda: self._store.lift(self._region, destination))

    def _write(self, destination: str, do: Callable[[], Awaitable[object]]) -> None:
        self._writing[destination] = self._writing.get(destination, 0) + 1

        async def write() -> None:
            try:
                await pace.insist(self._clock, "holding a destination", do)
            finally:
                self._writing[destination] -= 1
                if not self._writing[destination]:
                    del self._writing[destination]

        self._spawn(write())
