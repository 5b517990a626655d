"""How a destination has behaved lately, as far as this process saw it. It outlives lanes, which come and go with the mail."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import attrs

from mailsvc.delivery.limits import DeliveryLimits

_FOR = 3600.0  # seconds for which a success counts
_SIZE = 10_000  # destinations remembered
_COHORT = 3  # connections in a row that broke down under mail: the destination is in difficulty, not the mail
_PAUSE_FIRST, _PAUSE_LONGEST = 10.0, 300.0  # before one more connection is tried, when others work


@attrs.define(eq=False)
class Health:
    """`allowed` connections at once: one more after each mail that went through, half as many after trouble.

    Never more than this process' share of the region's.
    """

    clock: Any
    whole: int  # of all processes of the region together
    peers: Callable[[], int]
    wanted: int
    good_at: float = float("-inf")
    troubled: int = 0
    refused: int = 0
    _minute: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=7), init=False)  # tenths of it, and mails in each
    no_more_until: float = 0.0  # there is no point in a further connection before

    @property
    def allowed(self) -> int:
        return min(self.wanted, max(1, self.whole // max(1, self.peers())))

    def begin(self, initial: int) -> None:
        """It was not heard of for long: no more than at first."""
        self.wanted = min(self.wanted, initial)

    @property
    def proven(self) -> bool:
        """Whether it took mail lately."""
        return bool(self.clock.seconds() - self.good_at < _FOR)

    def succeeded(self) -> None:
        self.good_at = self.clock.seconds()
        self._note()
        self.troubled = 0
        self.wanted = self.allowed + 1

    def _note(self) -> None:
        now = int(self.good_at // 10)
        count = self._minute.pop()[1] if self._minute and self._minute[-1][0] == now else 0
        self._minute.append((now, count + 1))

    @property
    def per_minute(self) -> int:
        """Mails that it answered, in the last minute."""
        since = int(self.clock.seconds() // 10) - 6
        return sum(count for tenth, count in self._minute if tenth > since)

    def suffered(self) -> bool:
        """A connection broke down under mail. Whether that is the destination's state by now."""
        self.troubled += 1
        self.wanted = max(1, self.allowed // 2)
        return self.troubled >= _COHORT

    def crowded(self, open_now: int) -> None:
        """A further connection was refused while others work: it is asked for again later, and less and less often."""
        self.wanted = max(1, open_now)
        self.no_more_until = self.clock.seconds() + min(_PAUSE_LONGEST, _PAUSE_FIRST * 2.0 ** min(self.refused, 10))
        self.refused += 1

    def may_grow(self, dials: int) -> bool:
        """Whether a further connection may be tried while others exist; one at a time where one was refused."""
        return self.refused == 0 or (dials == 0 and bool(self.clock.seconds() >= self.no_more_until))

    def grew(self) -> None:
        self.refused = 0

    def probe(self) -> None:
        """Begin again, with one connection."""
        self.wanted, self.troubled, self.refused, self.good_at, self.no_more_until = 1, 0, 0, float("-inf"), 0.0


class Healths:
    """By destination; the ones not seen for longest are forgotten."""

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
            health.begin(self._initial)
        self._known.move_to_end(destination)
        return health
