"""Health: how a destination has behaved lately, as seen by this process. Kept when lanes come and go."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import attrs

from mailsvc.delivery.limits import DeliveryLimits

_PROVEN_FOR = 3600.0  # seconds
_SIZE = 10_000  # destinations remembered
_FAILURES = 3  # connections in a row that failed during a mail: the destination is at fault, not the mail
_PAUSE_FIRST, _PAUSE_LONGEST = 10.0, 300.0  # seconds after a further connection was refused while others were open


@attrs.define(eq=False)
class Health:
    """`allowed` connections: one more after each mail that went through, half as many after a failure.

    Never more than this process' share of the region's limit, `most`.
    """

    clock: Any
    most: int
    peers: Callable[[], int]
    wanted: int
    good_at: float = float("-inf")
    troubled: int = 0
    refused: int = 0
    no_more_until: float = 0.0  # do not try a further connection before
    _minute: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=7), init=False)  # tens of seconds, and mails in each

    @property
    def allowed(self) -> int:
        share = self.most // (self.peers() or 1) or 1  # at least one. Hot path: calls of max and min would take three times as long
        return share if share < self.wanted else self.wanted

    def restart(self, initial: int) -> None:
        """Nothing has been sent for long: begin with few connections."""
        self.wanted = min(self.wanted, initial)

    @property
    def proven(self) -> bool:
        """Whether it took mail lately."""
        return bool(self.clock.seconds() - self.good_at < _PROVEN_FOR)

    @property
    def retry_in(self) -> float:
        """Seconds until a further connection may be tried after one was refused."""
        left: float = self.no_more_until - self.clock.seconds() if self.refused else 0.0
        return max(0.0, left)

    def succeeded(self) -> None:
        self.good_at = self.clock.seconds()
        self._count()
        self.troubled = 0
        self.wanted = self.allowed + 1

    def _count(self) -> None:
        now = int(self.good_at // 10)
        count = self._minute.pop()[1] if self._minute and self._minute[-1][0] == now else 0
        self._minute.append((now, count + 1))

    @property
    def per_minute(self) -> int:
        """Mails that it replied to in the last minute."""
        since = int(self.clock.seconds() // 10) - 6
        return sum(count for ten, count in self._minute if ten > since)

    def failed(self) -> bool:
        """A connection failed during a mail. Returns whether the destination is at fault by now."""
        self.troubled += 1
        self.wanted = max(1, self.allowed // 2)
        return self.troubled >= _FAILURES

    def refuse(self, open_now: int) -> None:
        """A further connection was refused while `open_now` were open: try again later, less and less often."""
        self.wanted = max(1, open_now)
        self.no_more_until = self.clock.seconds() + min(_PAUSE_LONGEST, _PAUSE_FIRST * 2.0 ** min(self.refused, 10))
        self.refused += 1

    def grew(self) -> None:
        """A further connection was opened."""
        self.refused = 0

    def probe(self) -> None:
        """Begin again with one connection."""
        self.wanted, self.troubled, self.refused, self.good_at, self.no_more_until = 1, 0, 0, float("-inf"), 0.0


class Healths:
    """By destination. The least recently used ones are forgotten."""

    def __init__(self, clock: Any, limits: DeliveryLimits, peers: Callable[[], int] = lambda: 1) -> None:
        self._clock, self._most, self._peers = clock, max(1, limits.connections_max), peers
        self._initial = max(1, min(limits.connections_initial, self._most))
        self._known: OrderedDict[str, Health] = OrderedDict()

    def of(self, destination: str) -> Health:
        health = self._known.get(destination)
        if health is None:
            health = self._known[destination] = Health(self._clock, self._most, self._peers, self._initial)
            if len(self._known) > _SIZE:
                self._known.popitem(last=False)
        elif not health.proven:
            health.restart(self._initial)
        self._known.move_to_end(destination)
        return health
