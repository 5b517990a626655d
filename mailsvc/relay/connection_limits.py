"""Limits on connections, by address and by API key, and on failed logins, by address. They count in this process, in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from ipaddress import IPv6Address, IPv6Network, ip_address

import attrs
from twisted.internet.interfaces import IReactorTime

from mailsvc.net.client_address import unmapped

_REMEMBERED = 100_000  # addresses with failed logins
_PERIOD = 60.0  # seconds


def client_network(host: str) -> str:
    """What an address counts as: the address itself, or of IPv6 its /64, which is one subscriber."""
    try:
        found = unmapped(ip_address(host.partition("%")[0]))
    except ValueError:
        return host
    return str(IPv6Network((int(found) >> 64 << 64, 64))) if isinstance(found, IPv6Address) else str(found)


@attrs.define(eq=False)
class ConnectionLimits:
    """At most `limit` connections for each key: an address or an API key."""

    limit: int
    _open: Counter[Hashable] = attrs.field(factory=Counter)

    def __len__(self) -> int:
        return self._open.total()

    def enter(self, key: Hashable) -> bool:
        """Count a connection unless the limit is reached. Each one that was counted has to leave."""
        if self._open[key] >= self.limit:
            return False
        self._open[key] += 1
        return True

    def leave(self, key: Hashable) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


@attrs.define(eq=False)
class LoginFailures:
    """Failed logins of the last minute. An address with `limit` of them has to wait."""

    clock: IReactorTime
    limit: int
    _times: OrderedDict[str, deque[float]] = attrs.field(factory=OrderedDict)

    def add(self, address: str) -> None:
        times = self._times.pop(address, None) or deque(maxlen=self.limit)
        times.append(self.clock.seconds())
        self._times[address] = times
        if len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def exceeded(self, address: str) -> bool:
        times = self._times.get(address)
        if times is None:
            return False
        if times[-1] <= self.clock.seconds() - _PERIOD:
            del self._times[address]
            return False
        return len(times) >= self.limit and times[0] > self.clock.seconds() - _PERIOD
