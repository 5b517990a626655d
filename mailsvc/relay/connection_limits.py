"""How many there are: connections by address and by key, and failed logins by address. Counts of this process, in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Protocol

import attrs

_REMEMBERED = 100_000  # addresses whose failures are remembered
_SPAN = 60.0  # seconds


class Clock(Protocol):
    def seconds(self) -> float: ...


def subscriber(host: str) -> str:
    """Whom an address counts for: of IPv6 its /64, which is one subscriber."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((int(found) >> 64 << 64, 64)))
    return host


@attrs.define(eq=False)
class ConnectionLimits:
    """At most `most` of each."""

    most: int
    _present: Counter[Hashable] = attrs.field(factory=Counter)

    def __len__(self) -> int:
        return self._present.total()

    def enter(self, who: Hashable) -> bool:
        """Whether there was room; whoever came in has to leave."""
        if self._present[who] >= self.most:
            return False
        self._present[who] += 1
        return True

    def leave(self, who: Hashable) -> None:
        self._present[who] -= 1
        if not self._present[who]:
            del self._present[who]


@attrs.define(eq=False)
class Failures:
    """Failed logins of the last minute: after `most` of them an address has to wait."""

    clock: Clock
    most: int
    _times: OrderedDict[str, deque[float]] = attrs.field(factory=OrderedDict)

    def add(self, who: str) -> None:
        times = self._times.pop(who, None) or deque(maxlen=self.most)
        times.append(self.clock.seconds())
        self._times[who] = times
        if len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def exceeded(self, who: str) -> bool:
        times = self._times.get(who)
        if times is None:
            return False
        if times[-1] <= self.clock.seconds() - _SPAN:
            del self._times[who]
            return False
        return len(times) >= self.most and times[0] > self.clock.seconds() - _SPAN
