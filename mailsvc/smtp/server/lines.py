"""Reads the lines of a client in time, and limits the time and the bytes of clients that have not authenticated."""

from __future__ import annotations

import math

import attrs

from mailsvc.smtp.server import replies
from mailsvc.smtp.server.connection import ServerConnection, TimedOut
from mailsvc.smtp.server.framing import COMMAND_LIMIT, Overlong
from mailsvc.smtp.server.replies import Hangup
from mailsvc.smtp.server.session import Limits


@attrs.define(eq=False)
class LineReader:
    """`limited` until the client logs in or a recipient of its is accepted: so long it has little time and few bytes for commands,
    and may send as many bytes of refused chunks as one message can have."""

    connection: ServerConnection
    limits: Limits
    limited: bool
    _opened: float
    _bytes: int = 0  # of command lines, while limited
    _refused: int = 0  # bytes of refused chunks, while limited

    async def line(self, limit: int) -> bytes | Overlong:
        """The next line, of at most `limit` bytes. Raises Hangup if it is not complete in time."""
        connection = self.connection
        if connection.should_yield():
            await connection.yield_turn()
        until = 0.0
        while True:
            line = connection.incoming.line(limit) if connection.writable else None
            if limit == COMMAND_LIMIT and self.limited:
                self._count(line)
            if line is not None:
                return line
            until = until or self._deadline()
            try:
                await connection.wait(until)
            except TimedOut:
                raise Hangup(replies.IDLE) from None

    @property
    def end(self) -> float:
        """When the connection is closed if the client is still limited then."""
        seconds = self.limits.unauthenticated_seconds
        return self._opened + seconds if self.limited and seconds is not None else math.inf

    def refuse_chunk(self, size: int) -> None:
        """Count a refused chunk before it is read. Raises Hangup if it need not be."""
        if size > self.limits.size:
            raise Hangup(replies.TOO_BIG)
        if self.limited:
            self._refused += size
            if self._refused > self.limits.size:
                raise Hangup(replies.TOO_MANY_COMMANDS)

    def _deadline(self) -> float:
        until = self.connection.clock.seconds() + self.limits.idle
        return min(until, self.end) if self.limited else until

    def _count(self, line: bytes | Overlong | None) -> None:
        """Count a line, or the part of an overlong one that was discarded so far."""
        pending = self.connection.incoming.discarded if line is None else 0
        if isinstance(line, Overlong):
            self._bytes += line.size
        elif line is not None:
            self._bytes += len(line) + 2
        limit = self.limits.unauthenticated_bytes
        if limit is not None and self._bytes + pending > limit:
            raise Hangup(replies.TOO_MANY_COMMANDS)
