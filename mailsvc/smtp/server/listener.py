"""A port that receives mail: creates the connections and shuts them down in an orderly way. One connection: protocol."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Factory

from mailsvc.smtp.server import replies
from mailsvc.smtp.server.protocol import ServerProtocol, cancel
from mailsvc.smtp.server.replies import Hangup
from mailsvc.smtp.server.session import Listener, SessionFactory

FIRST_MAIL = 3.0  # seconds that a client which has sent no mail yet gets at a shutdown


class ServerFactory(Factory):
    """The connections of one port."""

    noisy = False

    def __init__(self, listener: Listener, open_session: SessionFactory, clock: IReactorTime) -> None:
        self.listener, self._open_session, self._clock = listener, open_session, clock
        self.live: set[ServerProtocol] = set()  # connections, and conversations that outlive theirs
        self._empty: Deferred[None] | None = None

    def buildProtocol(self, addr: object) -> ServerProtocol:
        return ServerProtocol(self.listener, self._open_session, self._clock, opened=self.live.add, ended=self._ended)

    def _ended(self, connection: ServerProtocol) -> None:
        self.live.discard(connection)
        if not self.live and self._empty is not None:
            empty, self._empty = self._empty, None
            empty.callback(None)

    async def stop(self, patience: float = 30.0) -> None:
        """Finish the bodies and decisions in progress, then end each session with 421 4.3.2. Stop listening first.

        A client that has sent no mail yet gets a moment to send one. Connections that remain after `patience` seconds are aborted.
        """
        for connection in tuple(self.live):
            if connection.session.mails:
                connection.hang_up(Hangup(replies.SHUTDOWN))
            else:
                connection.session.closing = True
        if not self.live:
            return
        self._empty = Deferred()
        calls = [self._clock.callLater(min(FIRST_MAIL, patience), self._hang_up), self._clock.callLater(patience, self._abort)]
        await self._empty
        for call in calls:
            cancel(call)

    def _hang_up(self) -> None:
        for connection in tuple(self.live):
            connection.hang_up(Hangup(replies.SHUTDOWN))

    def _abort(self) -> None:
        for connection in tuple(self.live):
            connection.transport.abortConnection()
