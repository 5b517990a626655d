"""Destinations and accounts that get no mail for a time, and providers that get it slowly: what all processes of a region know.

How long a destination is held after how many failures: retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.retry import Random, hold_seconds
from mailsvc.delivery.shaping import provider_of
from mailsvc.delivery.tasks import Tasks
from mailsvc.store.queue.claims import Hold, Queue, Slowdown
from mailsvc.store.queue.holds import EVERYTHING

FORGOTTEN = timedelta(days=1)  # after the end of a backoff that nobody tried again: its failures no longer count
T = TypeVar("T")


def _nothing() -> None:
    """No one listens."""


class Holds:
    """Those of one region, read from memory. `refresh` reads what other processes wrote. `on_pause` is called when a provider is paused."""

    log = Logger()

    def __init__(self, clock: Any, store: Queue, region: str, limits: DeliveryLimits, random: Random, tasks: Tasks) -> None:
        self._clock, self._store, self._region, self._limits, self._random, self._tasks = clock, store, region, limits, random, tasks
        self._known: dict[str, Hold] = {}
        self._slowed: dict[str, Slowdown] = {}
        self._writing: dict[str, int] = {}
        self._paused_accounts: Mapping[UUID, datetime] = {}
        self.on_pause: Callable[[], None] = _nothing

    def held(self, destination: str) -> bool:
        """Whether a destination is held, or its provider, or everything."""
        if not self._known:
            return False
        now, names = pace.now(self._clock), {destination, provider_of(destination), EVERYTHING}
        return any(hold is not None and hold.until > now for hold in map(self._known.get, names))

    def account_paused(self, account_id: UUID) -> bool:
        """Whether the operator paused an account."""
        until = self._paused_accounts.get(account_id)
        return until is not None and until > pace.now(self._clock)

    def failures(self, destination: str) -> int:
        """How often in a row it failed lately."""
        hold = self._known.get(destination)
        if hold is None or pace.now(self._clock) - hold.until > FORGOTTEN:
            return 0
        return hold.failures

    def names(self) -> list[str]:
        """Destinations that are held now."""
        return [name for name in self._known if self.held(name)]

    async def refresh(self) -> None:
        self._known = self._newer(dict(await self._store.holds(self._region)), self._known)
        now = pace.now(self._clock)
        self._slowed = self._newer(dict(await self._store.slowed(self._region, now)), self._slowed)
        self._paused_accounts = dict(await self._store.paused_accounts(now))

    def _newer(self, found: dict[str, T], known: dict[str, T]) -> dict[str, T]:
        """What was read, except for what this process is writing at the moment."""
        for name in self._writing:
            found.pop(name, None)
            if name in known:
                found[name] = known[name]
        return found

    def fail(self, destination: str, reason: str) -> None:
        """The destination could not be used: hold it, longer each time. A hold that is in force stays as it is."""
        if self.held(destination):
            return
        failures = self.failures(destination) + 1
        seconds = hold_seconds(failures, self._limits.hold_first, self._limits.hold_longest, self._random)
        until = pace.now(self._clock) + timedelta(seconds=seconds)
        hold = Hold("backoff", reason, until, failures)
        self._known[destination] = hold
        self.log.info("{destination} is held for {seconds:.0f} s: {reason}", destination=destination, seconds=seconds, reason=reason)
        self._write(destination, lambda: self._store.hold(self._region, destination, hold.state, reason, until, failures))

    def pause(self, name: str, reason: str, seconds: float) -> None:
        """Send nothing to a destination or a provider, from any process. A hold that lasts longer stays."""
        until = pace.now(self._clock) + timedelta(seconds=seconds)
        known = self._known.get(name)
        if known is not None and known.until >= until:
            return
        hold = self._known[name] = Hold("paused", reason, until, 0)
        self.log.info("{name} is paused for {seconds:.0f} s: {reason}", name=name, seconds=seconds, reason=reason)
        self._write(name, lambda: self._store.hold(self._region, name, hold.state, reason, until, 0))
        self.on_pause()

    def slowdown(self, name: str) -> Slowdown | None:
        """How slowly a destination or a provider is sent to now."""
        found = self._slowed.get(name)
        return found if found is not None and found.until > pace.now(self._clock) else None

    def slow(self, name: str, per_minute: float, reason: str, seconds: float) -> None:
        """Send a destination or a provider so many emails a minute, from all processes. Written again after a tenth of its time."""
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
        """Mail went through: end a backoff. A pause ends when its time is up, or when the operator ends it."""
        hold = self._known.get(destination)
        if hold is not None and hold.state == "backoff":
            del self._known[destination]
            self._write(destination, lambda: self._store.lift(self._region, destination))

    def _write(self, destination: str, do: Callable[[], Awaitable[object]]) -> None:
        self._writing[destination] = self._writing.get(destination, 0) + 1

        async def write() -> None:
            try:
                await pace.keep_trying(self._clock, "writing a hold", do)
            finally:
                self._writing[destination] -= 1
                if not self._writing[destination]:
                    del self._writing[destination]

        self._tasks.spawn(write())
