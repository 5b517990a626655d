"""Which hosts get mail by BDAT (RFC 3030), in one round trip if they offer CHUNKING, and which by DATA.

A host that offers CHUNKING but does not know BDAT, or does not reply to it, gets DATA for a while, so that no mail fails because of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.smtp.client.plan import SendMode

_WITHOUT_SECONDS = 3600.0  # seconds
_HOSTS = 10_000  # remembered


class Chunking:
    """`wanted`: the setting. A provider's rules may exclude its hosts."""

    def __init__(self, clock: Any, wanted: bool, shaping: Shaping = NO_RULES) -> None:
        self._clock, self._wanted, self._shaping = clock, wanted, shaping
        self._without: OrderedDict[str, float] = OrderedDict()

    def manner(self, destination: str, host: str, proven: bool) -> SendMode:
        """`proven`: the destination accepted mail lately. For others, wait for the RCPT replies before sending the message."""
        if not self._wanted or not self._shaping.chunking(destination):
            return "data"
        if host in self._without and self._clock.seconds() < self._without[host]:
            return "data"
        return "together" if proven else "bdat"

    def failed(self, host: str) -> None:
        self._without[host] = self._clock.seconds() + _WITHOUT_SECONDS
        self._without.move_to_end(host)
        while len(self._without) > _HOSTS:
            self._without.popitem(last=False)
