"""A port that receives mail: the factory of its connections, and its orderly end. One connection: receiver."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Factory

from mailsvc.smtp.server import replies
from mailsvc.smtp.server.protocol import ServerProtocol, stop
from mailsvc.smtp.server.replies import Hangup
from mailsvc.smtp.server.session import Listener, Welcome

FIRST_MAIL = 3.0  # seconds at a shutdown for who has not brought a mail yet


class ServerFactory(Factory):
    """The connections of one port."""

    noisy = False

    def __init__(self, listener: Listener, welcome: Welcome, clock: IReactorTime) -> None:
        self.listener, self._welcome, self._clock = listener, welcome, clock
        self.live: set[ServerProtocol] = set()  # connections, and conversations that outlive theirs
        self._empty: Deferred[None] | None = None

    def buildProtocol(self, addr: object) -> ServerProtocol:
        return ServerProtocol(self.listener, self._welcome, self._clock, self)

    def entered(self, receiver: ServerProtocol) -> None:
        self.live.add(receiver)

    def left(self, receiver: ServerProtocol) -> None:
        self.live.discard(receiver)
        if not self.live and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    async def stop(self, patience: float = 30.0) -> None:
        """Bodies and decisions that are under way are finished, then each session gets 421 4.3.2.

        One that came for a first mail and has not brought it gets a moment for that. Stop listening first. What is not over after
        `patience` is cut off.
        """
        for receiver in tuple(self.live):
            if receiver.session.mails:
                receiver.hang_up(Hangup(replies.SHUTDOWN))
            else:
                receiver.session.leaving = True
        if not self.live:
            return
        self._empty = Deferred()
        calls = [self._clock.callLater(min(FIRST_MAIL, patience), self._hang_up), self._clock.callLater(patience, self._cut_off)]
        await self._empty
        for call in calls:
            stop(call)

    def _hang_up(self) -> None:
        for receiver in tuple(self.live):
            receiver.hang_up(Hangup(replies.SHUTDOWN))

    def _cut_off(self) -> None:
        for receiver in tuple(self.live):
            receiver.transport.abortConnection()
