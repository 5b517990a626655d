"""How messages are sent to a host: by BDAT (RFC 3030) in one round trip, by DATA, or command by command without PIPELINING (RFC 2920).

A host can offer an extension that does not work, or that something on the way to it breaks. It gets no such mail for a while, so that no
mail fails because of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import attrs

from mailsvc.delivery.shaping import NO_RULES, Shaping
from mailsvc.smtp.client.plan import SendMode

_WITHOUT_SECONDS = 3600.0
_HOSTS = 10_000  # remembered


@attrs.define
class _Hosts:
    """Those that get mail without an extension, and until when."""

    clock: Any
    _until: OrderedDict[str, float] = attrs.field(factory=OrderedDict)

    def __contains__(self, host: str) -> bool:
        return host in self._until and self.clock.seconds() < self._until[host]

    def add(self, host: str) -> None:
        self._until[host] = self.clock.seconds() + _WITHOUT_SECONDS
        self._until.move_to_end(host)
        while len(self._until) > _HOSTS:
            self._until.popitem(last=False)


class SendModes:
    """`chunking`: the setting. A provider's rules may exclude its hosts."""

    def __init__(self, clock: Any, chunking: bool, shaping: Shaping = NO_RULES) -> None:
        self._chunking, self._shaping = chunking, shaping
        self._unchunked, self._unpipelined = _Hosts(clock), _Hosts(clock)

    def mode(self, destination: str, host: str, proven: bool) -> SendMode:
        """`proven`: the destination accepted mail lately. For others, wait for the RCPT replies before sending the message."""
        if host in self._unpipelined:
            return "single"
        if not self._chunking or not self._shaping.chunking(destination) or host in self._unchunked:
            return "data"
        return "together" if proven else "bdat"

    def unchunked(self, host: str) -> None:
        """BDAT failed with this host."""
        self._unchunked.add(host)

    def unpipelined(self, host: str) -> None:
        """This host replied only to the first of several commands."""
        self._unpipelined.add(host)
