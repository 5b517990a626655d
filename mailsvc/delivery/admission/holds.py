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
from mailsvc.delivery.admission.sources import SHORT_WAIT
from mailsvc.delivery.admission.throttling import RECOVERY, Throttle, slower, throttle
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.retry import Random, hold_seconds
from mailsvc.delivery.shaping import provider_of
from mailsvc.delivery.tasks import Tasks
from mailsvc.store.queue.claims import Hold, Queue, Slowdown
from mailsvc.store.queue.holds import EVERYTHING

FROM_ANOTHER_TIME = 2  # a backoff that lasts so many times the longest was made before the clock was set back
FORGOTTEN = timedelta(days=1)  # after the end of a backoff that nobody tried again: its failures no longer count
LEFT_TO_OTHERS = 30.0  # seconds
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
        self._left_to_others: dict[str, float] = {}  # until when, by the clock
        self.on_pause: Callable[[], None] = _nothing

    def held(self, destination: str) -> bool:
        """Whether a destination is held, or its provider, or everything."""
        if not self._known and not self._left_to_others:
            return False
        now, names = pace.now(self._clock), {destination, provider_of(destination), EVERYTHING}
        if any(hold is not None and hold.until > now for hold in map(self._known.get, names)):
            return True
        return any(self._left_to_others.get(name, 0.0) > self._clock.seconds() for name in names)

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
        return [name for name in {*self._known, *self._left_to_others} if self.held(name)]

    async def refresh(self) -> None:
        self._known = self._newer(dict(await self._store.holds(self._region)), self._known)
        now = pace.now(self._clock)
        self._slowed = self._newer(dict(await self._store.slowed(self._region, now - RECOVERY)), self._slowed)
        self._paused_accounts = dict(await self._store.paused_accounts(now))
        self._lift_those_of_another_time(now)

    def _lift_those_of_another_time(self, now: datetime) -> None:
        latest = now + timedelta(seconds=FROM_ANOTHER_TIME * self._limits.hold_longest)
        for name in [name for name, hold in self._known.items() if hold.state == "backoff" and hold.until > latest]:
            self.log.warn("{destination} is no longer held: the clock was set back", destination=name)
            self.lift(name)

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

    def wait_for_source(self, name: str, reason: str, until: datetime) -> None:
        """No source address may send to a destination or a provider before then, from any process. Another hold in force stays."""
        if self.held(name):
            return
        hold = self._known[name] = Hold("source", reason, until, 0)
        self.log.info("{name} waits until {until}: {reason}", name=name, until=until, reason=reason)
        self._write(name, lambda: self._store.hold(self._region, name, hold.state, reason, until, 0))
        self.on_pause()

    def leave_to_others(self, name: str) -> None:
        """Another process has a source address for it: claim nothing for it for a while."""
        now = self._clock.seconds()
        self._left_to_others = {name: until for name, until in self._left_to_others.items() if until > now}
        self._left_to_others[name] = now + LEFT_TO_OTHERS
        self.on_pause()

    @property
    def waiting_for_source(self) -> list[str]:
        """What waits for a source address, and for long enough that ending the wait is worth it."""
        soon = pace.now(self._clock) + SHORT_WAIT
        return [name for name, hold in self._known.items() if hold.state == "source" and hold.until > soon]

    def end_wait(self, name: str) -> None:
        """A source address may send there again."""
        if self._known.pop(name, None) is not None:
            self._write(name, lambda: self._store.end_wait(self._region, name))

    def throttle(self, name: str) -> Throttle | None:
        """How slowly a destination or a provider is sent to now."""
        found = self._slowed.get(name)
        return None if found is None else throttle(found, pace.now(self._clock))

    def throttled(self) -> dict[str, Throttle]:
        """All of them that are slowed down or recovering, by name."""
        return {name: found for name in self._slowed if (found := self.throttle(name)) is not None}

    def slow(self, name: str, per_minute: float, because: str, seconds: float) -> None:
        """Send a destination or a provider so many emails a minute, or fewer if it was slowed down before, from all processes."""
        slowdown = slower(self._slowed.get(name), name, per_minute, because, seconds, pace.now(self._clock))
        if slowdown is None:
            return
        self._slowed[name] = slowdown
        self.log.info("{reason}", reason=slowdown.reason)
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
