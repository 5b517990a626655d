"""The last moment at which a message can be held back: before its bytes reach the socket.

What is written to a connection is buffered until its socket accepts more. A process that is suspended in between, for so long that
others take over its leases, would otherwise complete the message when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionLost


class WriteGuard:
    """Guards one connection. From `require` until all data is sent, each write to the socket needs permission; without it, the
    connection is lost and the message stays incomplete."""

    def __init__(self) -> None:
        self._allowed: Callable[[], bool] | None = None
        self._attached = False

    @property
    def pending(self) -> bool:
        """Whether part of the message has not reached the socket yet, so that no reply can answer all of it."""
        return self._attached and self._allowed is not None

    def attach(self, transport: Any) -> None:
        """Intercept a TCP connection's writes to its socket, also below TLS that starts later. Other transports are not guarded."""
        write = getattr(transport, "writeSomeData", None)
        if write is None:
            return

        def guarded_write(data: Any) -> Any:
            if self._allowed is not None and not self._allowed():
                return ConnectionLost("held back")
            written = write(data)
            if written == len(data):
                self._allowed = None  # the end of the message was sent; what follows is not part of it
            return written

        transport.writeSomeData = guarded_write
        self._attached = True

    def require(self, allowed: Callable[[], bool]) -> None:
        """Call `allowed` before each write, until everything that was written so far has been sent."""
        self._allowed = allowed
