"""Keeping to what a provider takes: how many connections, how fast they are opened, how fast mail goes over them.

All lanes of a provider share one budget, and the processes of a region share its limits evenly. What the limits are: shaping.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from mailsvc.delivery.shaping import Limits, Shaping, provider_of
from mailsvc.store.queue.claims import Slowdown

Wake = Callable[[], None]
_SIZE = 10_000


@attrs.define(eq=False)
class Meter:
    """So many a second, evenly: each takes its place in time. What is too quick for timers may come in tenths of a second."""

    next_at: float = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until one more is in order."""
        return max(0.0, self.next_at - now)

    def take(self, now: float, rate: float) -> None:
        self.next_at = max(self.next_at, now - (0.1 if rate > 10 else 0.0)) + 1.0 / rate


class Budget:
    """Of one provider, or of one destination that belongs to none, in this process.

    `peers` tells how many processes share it, `slowdown` what all of them know of its slowness.
    """

    def __init__(self, clock: Any, limits: Limits, peers: Callable[[], int], slowdown: Callable[[], Slowdown | None]) -> None:
        self._clock, self._limits, self._peers, self._slowdown = clock, limits, peers, slowdown
        self._opening, self._sending = Meter(), Meter()
        self._waiting: OrderedDict[Wake, None] = OrderedDict()
        self.open = 0

    @property
    def _share(self) -> int:
        return max(1, self._peers())

    @property
    def slow_until(self) -> float | None:
        """Until when it is slowed down, as unix time."""
        slowdown = self._slowdown()
        return None if slowdown is None else slowdown.until.timestamp()

    @property
    def connections(self) -> int | None:
        """At once, from this process."""
        if self._slowdown() is not None:
            return 1
        most = self._limits.connections
        return None if most is None else max(1, int(most) // self._share)

    @property
    def over(self) -> bool:
        """Whether there are more connections than there may be by now."""
        most = self.connections
        return most is not None and self.open > most

    @property
    def per_connection(self) -> int | None:
        return None if self._limits.messages_per_connection is None else int(self._limits.messages_per_connection)

    @property
    def rate(self) -> float | None:
        """Emails a second, from this process."""
        whole, slowdown = self._limits.messages_per_second, self._slowdown()
        if slowdown is not None:
            slow = slowdown.per_minute / 60.0
            whole = slow if whole is None else min(whole, slow)
        return None if whole is None else whole / self._share

    # Connections

    def full(self, wake: Wake) -> bool:
        """Whether there is no connection to be had now; then `wake` is called once when one was given back."""
        most = self.connections
        if most is None or self.open < most:
            return False
        self._waiting.setdefault(wake)
        return True

    def wait_to_open(self) -> float:
        """Seconds until the next connection may be opened."""
        return 0.0 if self._limits.connections_per_minute is None else self._opening.wait(self._clock.seconds())

    def opening(self) -> None:
        """A connection is being opened."""
        if self._limits.connections_per_minute is not None:
            self._opening.take(self._clock.seconds(), self._limits.connections_per_minute / 60.0 / self._share)

    def taken(self) -> None:
        self.open += 1

    def give(self) -> None:
        """A connection is gone: whoever waits longest asks first."""
        self.open -= 1
        for _ in range(len(self._waiting)):
            before = self.open
            wake, _ = self._waiting.popitem(last=False)
            wake()
            if self.open > before:
                return

    def forget(self, wake: Wake) -> None:
        self._waiting.pop(wake, None)

    # Mail

    def send(self) -> float:
        """0: an email may go now, and is counted. Otherwise the seconds to wait before asking again."""
        rate = self.rate
        if rate is None:
            return 0.0
        now = self._clock.seconds()
        wait = self._sending.wait(now)
        if wait <= 0:
            self._sending.take(now, rate)
        return wait


class Budgets:
    """By provider, else by destination; those without open connections and not seen for longest are forgotten."""

    def __init__(self, clock: Any, shaping: Shaping, peers: Callable[[], int], slowdown: Callable[[str], Slowdown | None]) -> None:
        self._clock, self._shaping, self._peers, self._slowdown = clock, shaping, peers, slowdown
        self._known: OrderedDict[str, Budget] = OrderedDict()

    def of(self, destination: str) -> Budget:
        name = provider_of(destination)
        budget = self._known.get(name)
        if budget is None:
            budget = self._known[name] = Budget(self._clock, self._shaping.limits(destination), self._peers, partial(self._slowdown, name))
            while len(self._known) > _SIZE and not next(iter(self._known.values())).open:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return budget
