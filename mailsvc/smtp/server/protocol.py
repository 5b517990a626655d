"""The receiving end of one connection: bytes, deadlines, TLS and back-pressure. What is said: conversation. The port: listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, cast

from twisted.internet.abstract import FileDescriptor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from mailsvc.clock import unix
from mailsvc.mail.reply import Reply
from mailsvc.net.client_address import unmapped_host
from mailsvc.net.writing import write
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.connection import Disconnected, TimedOut
from mailsvc.smtp.server.conversation import Conversation
from mailsvc.smtp.server.framing import InputBuffer
from mailsvc.smtp.server.replies import Hangup, encode
from mailsvc.smtp.server.session import Listener, Peer, Session, SessionFactory, SessionPolicy
from mailsvc.smtp.server.transcript import Transcript

log = Logger()
_LINES_PER_TURN = 100  # read before other connections have their turn
_RECORD = 8192  # bytes; a body comes in TLS records of up to 16 kB
_LARGE, _TOGETHER = 60_000, 262_144  # bytes of a body: once so many arrive in a turn of the reactor, so many are read at once
_READING_MUCH = 32  # connections that do so, because what is read at once is not counted against any budget
_TLS_HANDSHAKE = 0x16  # the first byte of a TLS hello


@implementer(IHandshakeListener, IPushProducer, IHalfCloseableProtocol)
class ServerProtocol(TwistedProtocol):
    """One connection. The conversation awaits `wait`; everything that can happen to a connection ends that wait.

    `opened` is called when the connection is made, `ended` when it and its conversation have both ended.
    """

    reading_much: ClassVar[int] = 0  # connections
    transport: Any  # ITCPTransport, ITLSTransport, IPushProducer and IConsumer in one, or the TLS wrapper around it

    def __init__(
        self,
        listener: Listener,
        open_session: SessionFactory,
        clock: IReactorTime,
        *,
        opened: Callable[[ServerProtocol], None],
        ended: Callable[[ServerProtocol], None],
    ) -> None:
        self.listener, self.clock, self.incoming = listener, clock, InputBuffer()
        self._open_session, self._on_opened, self._on_ended = open_session, opened, ended
        self._out: list[bytes] = []
        self._waiting: Deferred[None] | None = None
        self._until = 0.0  # when the present wait times out
        self._wait_timer: IDelayedCall | None = None
        self._fires_at = 0.0  # the wait that _wait_timer was set for
        self._wake_timer: IDelayedCall | None = None  # in a body
        self._handshake_timer: IDelayedCall | None = None
        self._close_timer: IDelayedCall | None = None
        self._delay: tuple[IDelayedCall, Deferred[None]] | None = None
        self._data_received = self._reading_paused = False
        self.writable = True
        self._read_closed = self._closing = self._lost = False
        self._in_body = False  # the present wait is for a body
        self._reads_much = False  # at once, because the body is large
        self._gathering = False  # replies are collected for one write
        self._conversation_ended = False
        self._lines = 0  # read in this reactor turn
        self._stopping: Hangup | None = None

    # Called by the transport

    def connectionMade(self) -> None:
        self._on_opened(self)
        self.transport.setTcpNoDelay(True)  # the client waits for each reply
        self.transport.registerProducer(self, True)
        transcript = Transcript() if self.listener.transcripts else None
        self.session = Session(self._peer(), transcript, unix(self.clock), self.listener.login_required)
        if isinstance(self.transport, TLSMemoryBIOProtocol):
            self._begin_handshake()
        Deferred.fromCoroutine(self._converse()).addErrback(lambda failure: log.failure("an SMTP session failed", failure))

    def dataReceived(self, data: bytes) -> None:
        if not self._data_received:
            self._data_received = True
            if data[0] == _TLS_HANDSHAKE and self.session.tls is None:
                self.hang_up(Hangup(replies.TLS_ON_CLEAR_PORT))
        if self._closing:
            return
        self.incoming.feed(data)
        if self._in_body and len(data) >= _RECORD and len(self.incoming) < _TOGETHER:
            self._wake_soon()
        else:
            self._wake()
        most = self.listener.limits.unread if self._waiting is None else _TOGETHER
        if len(self.incoming) > most and not (self._reading_paused or self._closing):
            self._reading_paused = True
            self.transport.pauseProducing()

    def handshakeCompleted(self) -> None:
        cancel(self._handshake_timer)
        self.session.tls = _describe(self.transport.getHandle())

    def readConnectionLost(self) -> None:
        """The client sends nothing more, but may still read: what it sent is answered."""
        self._wake_now()
        self._read_closed = True
        if self._waiting is not None:
            self._wake(Disconnected())

    def writeConnectionLost(self) -> None:
        """Replies are lost from now on. The session ends when the read side does."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._wake_now()
        self._lost = self._read_closed = self._closing = True
        for call in (self._wait_timer, self._handshake_timer, self._close_timer):
            cancel(call)
        self._read_much(False)
        self._wake(Disconnected())
        if self._delay is not None:
            self._delay[0].cancel()
            self._end_delay(self._delay[1])
        if self._conversation_ended:
            self._on_ended(self)

    def pauseProducing(self) -> None:
        """The client does not read its replies: no command is read until it does."""
        self.writable = False

    def resumeProducing(self) -> None:
        self.writable = True
        self._wake()

    def stopProducing(self) -> None:
        """The connection is lost; connectionLost follows."""

    # Called by the conversation (connection.Connection)

    def wait(self, until: float, *, in_body: bool = False) -> Deferred[None]:
        if self._stopping is not None and not in_body:
            raise self._stopping
        if self._read_closed:
            raise Disconnected()
        if self._reading_paused and self.writable:
            self._reading_paused = False
            self.transport.resumeProducing()
        self._lines = 0
        self._until, self._in_body = until, in_body
        if self._reads_much and not in_body:
            self._read_much(False)
        self._set_wait_timer()
        waiting: Deferred[None] = Deferred()
        self._waiting = waiting
        return waiting

    def should_yield(self) -> bool:
        if self._stopping is not None:
            raise self._stopping
        if self._lost:
            raise Disconnected()
        self._lines += 1
        return self._lines > _LINES_PER_TURN

    async def yield_turn(self) -> None:
        self._lines = 0
        turn: Deferred[None] = Deferred()
        self.clock.callLater(0, self._resume, turn, None)
        await turn

    async def delay(self, seconds: float) -> None:
        if self._lost:
            return
        over: Deferred[None] = Deferred()
        self._delay = self.clock.callLater(seconds, self._end_delay, over), over
        await over

    def send(self, reply: Reply) -> None:
        """Send a reply. All replies of one turn go out in one write."""
        data = encode(reply)
        if self.session.transcript is not None:
            self.session.transcript.server(data, refusal=reply.code >= 400)
        self._out.append(data)
        if not self._gathering:
            self.flush()

    def flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            if not self._lost:
                write(self.transport, data)

    def start_tls(self) -> None:
        """Start TLS and discard what was received in clear text."""
        self.flush()
        self.incoming.clear()
        self._begin_handshake()
        self.transport.startTLS(self.listener.context)

    def close(self, *, abort: bool = False) -> None:
        """Close the connection. A client that does not read the last reply has little time to do so."""
        self.flush()
        self._closing = True
        if self._lost:
            return
        cancel(self._handshake_timer)
        if abort:
            self.transport.abortConnection()
            return
        self.transport.unregisterProducer()
        if self._reading_paused:  # otherwise the end of the connection goes unnoticed
            self.transport.resumeProducing()
        self.transport.loseConnection()
        self._close_timer = self.clock.callLater(self.listener.limits.grace, self.transport.abortConnection)

    # Called by the listener

    def hang_up(self, end: Hangup) -> None:
        """End the session at the next command. A body in progress is received first."""
        self._stopping = end
        if self._waiting is not None and not self._in_body:
            self._wake(end)

    # Internals

    async def _converse(self) -> None:
        try:
            policy = self._session_policy()
            if isinstance(policy, Reply):
                self.send(policy)
                self.close()
            else:
                await Conversation(self, self.listener, self.session, policy).run()
        finally:
            self._conversation_ended = True
            if self._lost:
                self._on_ended(self)

    def _session_policy(self) -> SessionPolicy | Reply:
        try:
            return self._open_session(self.session)
        except Exception:
            log.failure("opening an SMTP session failed")
            return replies.BROKEN

    def _wake(self, error: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._resume(waiting, None if error is None else Failure(error))

    def _wake_soon(self) -> None:
        """In this turn of the reactor, more of the body may have arrived."""
        if self._wake_timer is None:
            self._wake_timer = self.clock.callLater(0, self._wake_now)
        if len(self.incoming) >= _LARGE and ServerProtocol.reading_much < _READING_MUCH:
            self._read_much(True)

    def _read_much(self, much: bool) -> None:
        """Whether to read much at once."""
        if much == self._reads_much:
            return
        self._reads_much = much
        ServerProtocol.reading_much += 1 if much else -1
        transport = self.transport
        while isinstance(transport, ProtocolWrapper):
            transport = transport.transport
        transport.bufferSize = _TOGETHER if much else FileDescriptor.bufferSize

    def _wake_now(self) -> None:
        if self._wake_timer is not None:
            cancel(self._wake_timer)
            self._wake_timer = None
            self._wake()

    def _resume(self, waiting: Deferred[None], result: Failure | None) -> None:
        """Resume the conversation, and send in one write what it says before it waits again."""
        self._gathering = True
        try:
            waiting.callback(result)
        finally:
            self._gathering = False
            self.flush()

    def _end_delay(self, over: Deferred[None]) -> None:
        self._delay = None
        self._resume(over, None)

    def _set_wait_timer(self) -> None:
        """One timer serves all waits. Deadlines rarely move earlier, so it often fires too early and is set again, but never too late."""
        if self._wait_timer is not None and self._until < self._fires_at:
            self._wait_timer.cancel()
            self._wait_timer = None
        if self._wait_timer is None:
            self._fires_at = self._until
            self._wait_timer = self.clock.callLater(max(0.0, self._until - self.clock.seconds()), self._wait_timer_fired)

    def _wait_timer_fired(self) -> None:
        self._wait_timer = None
        if self._waiting is None:
            return
        if self.clock.seconds() < self._until:
            self._set_wait_timer()
            return
        self._wake(TimedOut())

    def _begin_handshake(self) -> None:
        self.session.tls = {}
        self._handshake_timer = self.clock.callLater(self.listener.limits.handshake, self.transport.abortConnection)

    def _peer(self) -> Peer:
        peer, host = self.transport.getPeer(), self.transport.getHost()
        return Peer(unmapped_host(getattr(peer, "host", "")), getattr(peer, "port", 0), getattr(host, "port", 0))


class _TlsHandle(Protocol):
    def get_protocol_version_name(self) -> str: ...

    def get_cipher_name(self) -> str | None: ...

    def get_group_name(self) -> str | None: ...


def _describe(handle: object) -> Mapping[str, str]:
    tls = cast(_TlsHandle, handle)
    facts = {"version": tls.get_protocol_version_name(), "cipher": tls.get_cipher_name() or ""}
    try:
        group = tls.get_group_name()
    except (AttributeError, RuntimeError):  # not known to every OpenSSL
        group = None
    return facts | ({"group": group} if group else {})


def cancel(call: IDelayedCall | None) -> None:
    if call is not None and call.active():
        call.cancel()
