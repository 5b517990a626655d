"""What time it is. Timers and dates have different clocks, and only this module knows both.

`clock.seconds()` is for timers and durations: in the daemon it is monotonic, so a step of the machine's clock moves no timer.
`unix(clock)` and `utc(clock)` are for dates: the database's clock, measured every few seconds and carried forward by the monotonic
one in between, so a step of the machine's clock moves no date either. `held(clock)` says why dates cannot be trusted at the moment:
the machine's clock and the database's disagree. While it does, nothing expires, is accepted or is attempted.

`iso_time` is how times are written in events and responses. A test's `task.Clock` is both clocks at once and always trusted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

TOLERANCE = 10.0  # seconds by which the two clocks may differ
SLOW = 2.0  # seconds; an answer that took longer says too little about the database's clock

log = Logger()


# Seconds that never step, and that also pass while the machine is suspended.
monotonic: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


@attrs.define(eq=False)
class TimeOfDay:
    """The database's clock, as this process knows it. `machine` is this machine's clock; `steady` never steps.

    Until the first measurement the machine's clock is believed.
    """

    tolerance: float = TOLERANCE
    steady: Callable[[], float] = monotonic
    machine: Callable[[], float] = time.time
    _offset: float = attrs.field(init=False)  # of the time of day from `steady`
    _measured: bool = attrs.field(default=False, init=False)
    _apart: float = attrs.field(default=0.0, init=False)  # seconds that the machine was ahead of the database when last measured
    _reported: bool = attrs.field(default=False, init=False)
    _disturbed: float = attrs.field(default=float("-inf"), init=False)  # when the clocks last disagreed or moved, by `steady`

    def __attrs_post_init__(self) -> None:
        self._offset = self.machine() - self.steady()

    def seconds(self) -> float:
        """Unix time."""
        return self.steady() + self._offset

    @property
    def ahead(self) -> float:
        """Seconds that the machine's clock is ahead of the database's; negative if it is behind."""
        stepped = self.machine() - self.seconds()
        return stepped if abs(stepped) > abs(self._apart) else self._apart

    @property
    def held(self) -> str | None:
        """Why the time cannot be trusted, as a sentence without its subject; None if it can."""
        ahead = self.ahead
        if abs(ahead) <= self.tolerance:
            return None
        return f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the database's"

    def measured(self, before: float, there: float, after: float) -> None:
        """The database's clock showed `there` at a moment between `before` and `after`, which are of `steady`.

        A measurement on which the two clocks disagree changes no date: which of them is wrong cannot be known here.
        """
        if self._measured and after - before > SLOW:
            return
        lowest, highest = there - after, there - before
        machine = self.machine() - self.steady()
        apart = machine - _within(machine, lowest, highest)
        if not self._measured or abs(apart) <= self.tolerance:
            believed = _within(self._offset, lowest, highest) if self._measured else (lowest + highest) / 2
            if abs(believed - self._offset) > self.tolerance:
                log.warn("the time of day moves by {seconds:+.1f} s, to the database's clock", seconds=believed - self._offset)
                self._disturbed = after if self._measured else self._disturbed
            self._offset, self._measured = believed, True
        self._apart = apart
        if self.held is not None:
            self._disturbed = after
        self.report()

    @property
    def calm_for(self) -> float:
        """Seconds since the clocks last disagreed, or one of them moved by more than the tolerance."""
        return self.steady() - self._disturbed

    def report(self) -> None:
        """Log when mail begins to be held, and when it no longer is."""
        held = self.held
        if held is not None and not self._reported:
            log.error("mail is held: {held}. It continues when the clocks agree", held=held)
        elif held is None and self._reported:
            log.info("the clocks agree again: mail continues")
        self._reported = held is not None


def _within(value: float, lowest: float, highest: float) -> float:
    return min(max(value, lowest), highest)


def unix(clock: Any) -> float:
    """Unix time by this clock."""
    day = getattr(clock, "time_of_day", None)
    return float(clock.seconds() if day is None else day.seconds())


def utc(clock: Any) -> datetime:
    """The date and time by this clock."""
    return datetime.fromtimestamp(unix(clock), UTC)


def iso_time(at: datetime) -> str:
    """A time in events and in most responses (RFC 3339 §5.6): in UTC, with milliseconds and Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def held(clock: Any) -> str | None:
    """Why nothing may expire, be accepted or be attempted now; None: it may."""
    day = getattr(clock, "time_of_day", None)
    return None if day is None else day.held


def ahead(clock: Any) -> float:
    """Seconds that the machine's clock is ahead of the database's."""
    day = getattr(clock, "time_of_day", None)
    return 0.0 if day is None else float(day.ahead)


def calm_for(clock: Any) -> float:
    """For how many seconds times that were written by the database's clock have been comparable."""
    day = getattr(clock, "time_of_day", None)
    return float("inf") if day is None else float(day.calm_for)


async def measure(clock: Any, read: Callable[[], Awaitable[float | None]]) -> float | None:
    """Compare with the database's clock. `read` asks for it, in unix seconds; None: it was not told."""
    day: TimeOfDay | None = getattr(clock, "time_of_day", None)
    if day is None:
        return await read()
    before = day.steady()
    there = await read()
    if there is not None:
        day.measured(before, there, day.steady())
    return there


def prepare(reactor: Any, tolerance: float = TOLERANCE) -> TimeOfDay:
    """Make the reactor's timers monotonic, those already set too, and give it a time of day. Repeating it changes nothing."""
    day: TimeOfDay | None = getattr(reactor, "time_of_day", None)
    if day is None:
        shift = monotonic() - reactor.seconds()
        reactor.seconds = monotonic
        for call in reactor.getDelayedCalls():
            call.time, call.seconds = call.time + shift, monotonic
        day = reactor.time_of_day = TimeOfDay()
    day.tolerance = tolerance
    return day
