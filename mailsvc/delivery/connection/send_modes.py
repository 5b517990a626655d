"""How messages are sent to a host: by BDAT (RFC 3030) in one round trip, by DATA, or command by command without PIPELINING (RFC 2920).

A host can offer an extension that does not work, or that something on the way to it breaks. It gets no such mail for a while, so that no
mail fails because of it.
"""

from __future__ import annotations

from typing import Any

from mailsvc.delivery.connection.host_memory import HostMemory
from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.smtp.client.plan import SendMode


class SendModes:
    """`chunking`: the setting. A provider's rules may exclude its hosts."""

    def __init__(self, clock: Any, chunking: bool, shaping: Shaping = NO_RULES) -> None:
        self._chunking, self._shaping = chunking, shaping
        self._unchunked, self._unpipelined = HostMemory[bool](clock), HostMemory[bool](clock)

    def mode(self, destination: str, host: str, proven: bool) -> SendMode:
        """`proven`: the destination accepted mail lately. For others, wait for the RCPT replies before sending the message."""
        if self._unpipelined.get(host):
            return "single"
        if not self._chunking or not self._shaping.chunking(destination) or self._unchunked.get(host):
            return "data"
        return "together" if proven else "bdat"

    def unchunked(self, host: str) -> None:
        """BDAT failed with this host."""
        self._unchunked.set(host, True)

    def unpipelined(self, host: str) -> None:
        """This host replied only to the first of several commands."""
        self._unpipelined.set(host, True)
