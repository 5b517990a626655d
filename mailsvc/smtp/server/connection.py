"""The connection as its conversation sees it, and the two ways in which waiting for data can fail. The real one: protocol."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server.framing import InputBuffer


class Disconnected(Exception):
    """The client has closed the connection."""


class TimedOut(Exception):
    """Nothing arrived in time."""


class ServerConnection(Protocol):
    clock: IReactorTime
    incoming: InputBuffer
    writable: bool  # whether the client reads its replies

    def wait(self, until: float, *, in_body: bool = False) -> Awaitable[None]:
        """Wait for data, or for the client to read its replies. Raises Disconnected, TimedOut at `until`, or, outside bodies, Hangup."""

    def should_yield(self) -> bool:
        """Whether so many lines were read that other connections should have their turn. Called before each line.

        Raises Disconnected or Hangup if the session has to end.
        """

    async def yield_turn(self) -> None:
        """Let other connections have their turn."""

    async def delay(self, seconds: float) -> None:
        """Wait before the next reply. Ends early if the connection is lost."""

    def send(self, reply: Reply) -> None: ...

    def start_tls(self) -> None: ...

    def close(self, *, abort: bool = False) -> None: ...
