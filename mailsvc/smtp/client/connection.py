"""What every phase of an outgoing connection needs: replies in, one deadline, one end, and news told at the right moment.

The phases: opening (until it is ready for mail), client (messages).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.deadlines import Deadline, Timeouts
from mailsvc.smtp.client.replies import BadReply, ReplyReader
from mailsvc.smtp.client.transcript import ClientTranscript


class Connection(Protocol, ABC):
    """One reply at a time goes to `_take`, which the phases set. Whoever waits is told after all octets at hand were read."""

    transport: Any  # a TCP connection, which startTLS secures in place
    _take: Callable[[Reply], None]

    def __init__(self, clock: IReactorTime, timeouts: Timeouts, transcript: bool) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._answers = ReplyReader()
        self._deadline = Deadline(clock, self._expired)
        self._dialogue = ClientTranscript(clock.seconds(), transcript)
        self._open = False  # connected, and not given up by us
        self._gone = False  # connectionLost was called
        self._news: list[tuple[Deferred[Any], Any]] = []
        self._closers: list[Deferred[None]] = []
        self._heard = 0.0  # when the server said something last

    def when_closed(self) -> Deferred[None]:
        """Fires when the connection is gone; for each caller a Deferred of its own."""
        closed: Deferred[None] = Deferred()
        if self._gone:
            closed.callback(None)
        else:
            self._closers.append(closed)
        return closed

    def abort(self, reason: str) -> None:
        """End the connection now. Whoever waits for something is told `reason`."""
        self._fail(reason)
        self._tell()

    def connectionMade(self) -> None:
        self._open = True
        no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if no_delay is not None:
            no_delay(True)  # commands wait for no acknowledgement of the last ones
        self._dialogue.started = self._clock.seconds()

    def dataReceived(self, data: bytes) -> None:
        if not self._open:
            return
        self._answers.push(data)
        now = self._heard = self._clock.seconds()
        try:
            while self._open and (answer := self._answers.next()) is not None:
                self._dialogue.server(answer.raw, now)
                self._take(answer.reply)
        except BadReply as fault:
            self._fail(f"the server sent {fault}")
        self._tell()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._gone = True
        if self._open:
            self._cut(reason.value or ConnectionLost())
        self._deadline.stop()
        closers, self._closers = self._closers, []
        self._news += [(closer, None) for closer in closers]
        self._tell()

    # For the phases

    @abstractmethod
    def _fail(self, reason: str) -> None:
        """The connection cannot be used any more, by our own judgement: close it and remember what to tell."""

    @abstractmethod
    def _cut(self, error: BaseException) -> None:
        """The connection was lost while it was in use."""

    def _say(self, line: bytes) -> None:
        self._dialogue.client(line)
        self.transport.write(line + b"\r\n")

    def _rest(self) -> None:
        """Nothing is asked and nothing is expected."""
        self._deadline.clear()
        self._take = self._unsolicited

    def _unsolicited(self, reply: Reply) -> None:
        """A reply to nothing: 421 is a goodbye (5321 §3.8), and after any other the next one would be taken for what it is not."""
        self._fail(f"the server said, unasked: {reply}")

    def _close(self) -> None:
        self._open = False
        self._deadline.stop()
        if not self._gone:
            self.transport.abortConnection()

    def _part(self) -> None:
        """Say goodbye without waiting for the answer; the connection may take `timeouts.quit` to close."""
        self._open = False
        self._say(b"QUIT")
        self._deadline.set(self._clock.seconds() + self._timeouts.quit, "the end of the connection")
        self.transport.loseConnection()

    def _tell(self) -> None:
        while self._news:
            waiting, value = self._news.pop(0)
            if isinstance(value, Exception):
                waiting.errback(value)
            else:
                waiting.callback(value)

    def _expired(self, what: str) -> None:
        if self._open:
            self._fail(f"timed out waiting for: {what}")
            self._tell()
        elif not self._gone:
            self.transport.abortConnection()

    def _canceled(self, _waiting: Deferred[Any]) -> None:
        self.abort("canceled")
