"""Which hosts get their mail by BDAT (RFC 3030), whole and in one round trip where they offer it, and which by DATA.

A host that offers CHUNKING and does not know BDAT, or does not answer it, gets DATA for a while, so that no mail fails because of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.smtp.client.plan import SendMode

_WHILE = 3600.0  # seconds
_MOST = 10_000  # hosts remembered


class Chunking:
    """`wanted`: the operator's word for all; for a provider's hosts its rules have theirs."""

    def __init__(self, clock: Any, wanted: bool, shaping: Shaping = NO_RULES) -> None:
        self._clock, self._wanted, self._shaping = clock, wanted, shaping
        self._without: OrderedDict[str, float] = OrderedDict()

    def manner(self, destination: str, host: str, proven: bool) -> SendMode:
        """`proven`: the destination took mail lately. From others the recipients' replies are waited for, as patience has it."""
        if not self._wanted or not self._shaping.chunking(destination):
            return "data"
        if host in self._without and self._clock.seconds() < self._without[host]:
            return "data"
        return "together" if proven else "bdat"

    def failed(self, host: str) -> None:
        self._without[host] = self._clock.seconds() + _WHILE
        self._without.move_to_end(host)
        while len(self._without) > _MOST:
            self._without.popitem(last=False)
