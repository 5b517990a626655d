"""What a conversation needs of its connection, and how a connection ends a wait."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server.framing import Inbox


class Gone(Exception):
    """The client has gone."""


class Late(Exception):
    """The wait is over and nothing has come."""


class Transport(Protocol):
    """The connection as its conversation sees it (receiver has the real one)."""

    clock: IReactorTime
    inbox: Inbox

    @property
    def ready(self) -> bool:
        """Whether the client takes replies."""

    async def more(self, until: float, *, in_body: bool = False) -> None:
        """Wait for octets or for the client to take replies. Gone, Late at `until`, or Hangup except in a body."""

    def tired(self) -> bool:
        """Asked before each line: whether so many were taken that others should have their turn. Gone or Hangup when it is over."""

    async def rest(self) -> None:
        """Let the others have it."""

    async def pause(self, seconds: float) -> None:
        """Let time pass before the next reply; one that goes nowhere any more is not waited for."""

    def send(self, reply: Reply) -> None: ...

    def secure(self) -> None: ...

    def finish(self, *, abort: bool = False) -> None: ...
