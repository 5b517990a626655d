"""Which hosts serve whose tracked links, from memory, so that links work while the database is down.

The installation's own hosts serve all accounts. A customer's host serves only the links of that customer: others could otherwise make it
redirect wherever they like.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import attrs

from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.tracking.hosts import Served, ServedHosts

EVERY = 30.0  # seconds, besides notifications of changes


@attrs.define(eq=False)
class TrackingHosts:
    """`own`: the installation's hosts, in lower case."""

    stored: ServedHosts
    own: Collection[str]
    _served: Served = attrs.field(factory=Served)

    def loop(self, clock: object) -> PollingLoop:
        """At most a fifth of the time is spent reading, however often something changes."""
        return PollingLoop(clock, "reading the hosts of tracked links", self.refresh, EVERY, rest=lambda seconds: max(1.0, 4 * seconds))

    async def refresh(self) -> None:
        self._served = await self.stored.read()

    def known(self, host: str) -> bool:
        """Whether it serves tracked links at all."""
        return host in self.own or host in self._served.by_host

    def serves(self, host: str, account_id: UUID) -> bool:
        """Whether it serves those of this account."""
        if account_id in self._served.suspended:
            return False
        return host in self.own or account_id in self._served.by_host.get(host, ())
