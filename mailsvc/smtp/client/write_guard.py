"""The last moment at which a message can be held back: when the system is given its octets.

What is written to a connection goes out once its socket can take it, which is later. A process that is stopped in between, for so long
that others take over its work, would otherwise complete the message when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionLost


class WriteGuard:
    """Of one connection. While it asks, each piece needs a yes; after a no the connection is lost, and the message incomplete."""

    def __init__(self) -> None:
        self._may_go: Callable[[], bool] | None = None
        self._standing = False

    @property
    def holding(self) -> bool:
        """Whether part of the message is still on our side, so that no reply can be to all of it."""
        return self._standing and self._may_go is not None

    def stand_before(self, transport: Any) -> None:
        """What a TCP connection gives to the system passes here, also when TLS is laid over it later. Others have no such moment."""
        give = getattr(transport, "writeSomeData", None)
        if give is None:
            return

        def give_if_allowed(octets: Any) -> Any:
            if self._may_go is not None and not self._may_go():
                return ConnectionLost("held back")
            given = give(octets)
            if given == len(octets):
                self._may_go = None  # the end is on its way, and what comes after it is nobody's message
            return given

        transport.writeSomeData = give_if_allowed
        self._standing = True

    def ask(self, may_go: Callable[[], bool]) -> None:
        """Before each piece, until all that is written has gone."""
        self._may_go = may_go
