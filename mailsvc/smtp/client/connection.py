"""What every phase of an outgoing connection needs: reading replies, one deadline, closing, and firing Deferreds at the right moment.

The phases: handshake (until the connection is ready for mail), client (messages).
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


class ClientConnection(Protocol, ABC):
    """Each reply goes to `_on_reply`, which the phases set. Results fire after all data at hand was read."""

    transport: Any  # a TCP connection; startTLS secures it in place
    _on_reply: Callable[[Reply], None]

    def __init__(self, clock: IReactorTime, timeouts: Timeouts, transcript: bool) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._replies = ReplyReader()
        self._deadline = Deadline(clock, self._expired)
        self._transcript = ClientTranscript(clock.seconds(), transcript)
        self._open = False  # connected, and not closed by this side
        self._gone = False  # connectionLost was called
        self._results: list[tuple[Deferred[Any], Any]] = []
        self._close_waiters: list[Deferred[None]] = []
        self._last_data_at = 0.0  # when the server last sent something

    def when_closed(self) -> Deferred[None]:
        """Fires when the connection is closed. Each call returns another Deferred."""
        closed: Deferred[None] = Deferred()
        if self._gone:
            closed.callback(None)
        else:
            self._close_waiters.append(closed)
        return closed

    def abort(self, reason: str) -> None:
        """Close the connection now, for `reason`."""
        self._fail(reason)
        self._fire_results()

    def connectionMade(self) -> None:
        self._open = True
        no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if no_delay is not None:
            no_delay(True)  # do not wait for the acknowledgment of earlier commands
        self._transcript.started = self._clock.seconds()

    def dataReceived(self, data: bytes) -> None:
        if not self._open:
            return
        self._replies.push(data)
        now = self._last_data_at = self._clock.seconds()
        try:
            while self._open and (answer := self._replies.next()) is not None:
                self._transcript.server(answer.raw, now)
                self._on_reply(answer.reply)
        except BadReply as fault:
            self._fail(f"the server sent {fault}")
        self._fire_results()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._gone = True
        if self._open:
            self._connection_cut(reason.value or ConnectionLost())
        self._deadline.stop()
        closers, self._close_waiters = self._close_waiters, []
        self._results += [(closer, None) for closer in closers]
        self._fire_results()

    # For the phases

    @abstractmethod
    def _fail(self, reason: str) -> None:
        """Close the connection because of a failure that this side found, and prepare the results."""

    @abstractmethod
    def _connection_cut(self, error: BaseException) -> None:
        """The connection was lost while it was in use."""

    def _send_line(self, line: bytes) -> None:
        self._transcript.client(line)
        self.transport.write(line + b"\r\n")

    def _idle(self) -> None:
        """No command is in progress and no reply is expected."""
        self._deadline.clear()
        self._on_reply = self._unsolicited

    def _unsolicited(self, reply: Reply) -> None:
        """421 announces that the server closes the connection (5321 §3.8); after any other, replies no longer match their commands."""
        self._fail(f"unexpected reply: {reply}")

    def _close(self) -> None:
        self._open = False
        self._deadline.stop()
        if not self._gone:
            self.transport.abortConnection()

    def _close_politely(self) -> None:
        """Send QUIT and close the connection without waiting for the reply, within `timeouts.quit` seconds."""
        self._open = False
        self._send_line(b"QUIT")
        self._deadline.set(self._clock.seconds() + self._timeouts.quit, "the end of the connection")
        self.transport.loseConnection()

    def _fire_results(self) -> None:
        while self._results:
            result, value = self._results.pop(0)
            if isinstance(value, Exception):
                result.errback(value)
            else:
                result.callback(value)

    def _expired(self, what: str) -> None:
        if self._open:
            self._fail(f"timed out waiting for {what}")
            self._fire_results()
        elif not self._gone:
            self.transport.abortConnection()

    def _canceled(self, _result: Deferred[Any]) -> None:
        self.abort("canceled")
