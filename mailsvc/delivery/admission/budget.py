"""Provider budgets: connections open and connections opened, mail sent, and what a provider allows of each.

All lanes of a provider share one budget, and the processes of a region share its limits evenly. The limits: shaping. What follows from
a budget: decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from mailsvc.delivery.admission.throttling import Throttle
from mailsvc.delivery.shaping import Limits, Shaping, provider_of

Wake = Callable[[], None]
_SIZE = 10_000


@attrs.define(eq=False)
class Meter:
    """An even rate. Above ten a second they may come in bursts of a tenth of a second, because timers are not that precise."""

    next_at: float = float("-inf")

    def count(self, now: float, rate: float) -> None:
        self.next_at = max(self.next_at, now - (0.1 if rate > 10 else 0.0)) + 1.0 / rate


class Budget:
    """Of one provider, or of one destination without a provider, in this process.

    `peers` returns how many processes share it, `throttle` how much the region slows it down.
    """

    def __init__(self, clock: Any, limits: Limits, peers: Callable[[], int], throttle: Callable[[], Throttle | None]) -> None:
        self._clock, self._limits, self._peers, self._throttle = clock, limits, peers, throttle
        self._opening, self._sending = Meter(), Meter()
        self._waiting: OrderedDict[Wake, None] = OrderedDict()
        self.open = 0
        self._waking = False

    @property
    def _share(self) -> int:
        return max(1, self._peers())

    @property
    def slow_until(self) -> float | None:
        """Until when it is slowed down, as Unix time. After that, its rate recovers."""
        throttle = self._throttle()
        return None if throttle is None else throttle.until.timestamp()

    @property
    def slow_rate(self) -> float | None:
        """Emails a minute from the region while it is slowed down or recovers."""
        throttle = self._throttle()
        return None if throttle is None else throttle.per_minute

    @property
    def connections(self) -> int | None:
        """The limit of open connections from this process."""
        most, throttle = self._limits.connections, self._throttle()
        if throttle is not None:
            if not throttle.recovering:
                return 1
            most = throttle.connections if most is None else min(int(most), throttle.connections)
        return None if most is None else max(1, int(most) // self._share)

    @property
    def per_connection(self) -> int | None:
        return None if self._limits.messages_per_connection is None else int(self._limits.messages_per_connection)

    @property
    def rate(self) -> float | None:
        """Emails a second from this process."""
        whole, throttle = self._limits.messages_per_second, self._throttle()
        if throttle is not None:
            slow = throttle.per_minute / 60.0
            whole = slow if whole is None else min(whole, slow)
        return None if whole is None else whole / self._share

    # Connections

    @property
    def open_wait(self) -> float:
        """Seconds until the next connection may be opened."""
        return 0.0 if self._limits.connections_per_minute is None else max(0.0, self._opening.next_at - self._clock.seconds())

    def count_opening(self) -> None:
        """A connection is being opened."""
        if self._limits.connections_per_minute is not None:
            self._opening.count(self._clock.seconds(), self._limits.connections_per_minute / 60.0 / self._share)

    def take(self) -> None:
        self.open += 1

    def give_back(self) -> None:
        """A connection is gone. Those that wait are woken in order until one takes its place, and again for each that ended meanwhile."""
        self.open -= 1
        if self._waking:  # called by one that was woken and has failed already; the loop below continues with the next
            return
        self._waking, before = True, self.open + 1
        try:
            while self.open < before:  # one that was woken has closed an idle connection
                before = self.open
                before += self._wake()
        finally:
            self._waking = False

    def _wake(self) -> bool:
        """Whether one has taken a place."""
        for _ in range(len(self._waiting)):
            if not self._waiting:  # one that was woken ended the wait of others
                break
            before = self.open
            wake, _ = self._waiting.popitem(last=False)
            wake()
            if self.open > before:
                return True
        return False

    def wait(self, wake: Wake) -> None:
        """Call `wake` once when a connection is given back."""
        self._waiting.setdefault(wake)

    def stop_waiting(self, wake: Wake) -> None:
        self._waiting.pop(wake, None)

    # Mail

    @property
    def next_send_at(self) -> float:
        """By the clock: when the next email may be sent."""
        return self._sending.next_at

    def count_sending(self, rate: float | None) -> None:
        """An email is being sent, at a time when `rate` applies."""
        if rate is not None:
            self._sending.count(self._clock.seconds(), rate)


class Budgets:
    """By provider, or by destination. The least recently used ones without open connections are forgotten."""

    def __init__(self, clock: Any, shaping: Shaping, peers: Callable[[], int], throttle: Callable[[str], Throttle | None]) -> None:
        self._clock, self._shaping, self._peers, self._throttle = clock, shaping, peers, throttle
        self._known: OrderedDict[str, Budget] = OrderedDict()

    def of(self, destination: str) -> Budget:
        name = provider_of(destination)
        budget = self._known.get(name)
        if budget is None:
            budget = self._known[name] = Budget(self._clock, self._shaping.limits(destination), self._peers, partial(self._throttle, name))
            while len(self._known) > _SIZE and not next(iter(self._known.values())).open:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return budget
