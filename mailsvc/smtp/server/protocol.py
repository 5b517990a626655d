"""The receiving end of one connection: octets, deadlines, TLS and back-pressure. What is said: conversation. A port: server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

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
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from mailsvc.clock import unix
from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.conversation import Conversation
from mailsvc.smtp.server.framing import Inbox
from mailsvc.smtp.server.replies import Hangup, encode
from mailsvc.smtp.server.session import Listener, Peer, Reception, Session, Welcome
from mailsvc.smtp.server.transcript import Transcript
from mailsvc.smtp.server.transport import Gone, Late

if TYPE_CHECKING:
    from mailsvc.smtp.server.listener import ServerFactory

log = Logger()
_LINES_A_TURN = 100  # taken without a look at the other connections
_TLS_HANDSHAKE = 0x16  # the first octet of a TLS hello


@implementer(IHandshakeListener, IPushProducer, IHalfCloseableProtocol)
class ServerProtocol(TwistedProtocol):
    """One connection. The conversation awaits `more`; everything that can happen to a connection ends that wait."""

    transport: Any  # ITCPTransport, ITLSTransport, IPushProducer and IConsumer in one, or the TLS wrapper around it

    def __init__(self, listener: Listener, welcome: Welcome, clock: IReactorTime, owner: ServerFactory) -> None:
        self.listener, self.clock, self.inbox = listener, clock, Inbox()
        self._welcome, self._owner = welcome, owner
        self._out: list[bytes] = []
        self._waiting: Deferred[None] | None = None
        self._until = 0.0  # when the present wait is over
        self._alarm: IDelayedCall | None = None
        self._handshake: IDelayedCall | None = None
        self._grace: IDelayedCall | None = None
        self._pause: tuple[IDelayedCall, Deferred[None]] | None = None
        self._heard = self._paused = self._full = self._ended = self._closing = self._lost = False
        self._in_body = False  # the present wait is for a body
        self._gathering = self._over = False
        self._unrested = 0  # lines taken since the reactor last had a turn
        self._stopping: Hangup | None = None

    # ── what the transport tells ──

    def connectionMade(self) -> None:
        self._owner.entered(self)
        self.transport.setTcpNoDelay(True)  # replies are small and waited for
        self.transport.registerProducer(self, True)
        self.session = Session(self._peer(), Transcript() if self.listener.transcripts else None, unix(self.clock))
        if isinstance(self.transport, TLSMemoryBIOProtocol):
            self._shake_hands()
        Deferred.fromCoroutine(self._converse()).addErrback(lambda failure: log.failure("a conversation broke off", failure))

    def dataReceived(self, data: bytes) -> None:
        if not self._heard:
            self._heard = True
            if data[0] == _TLS_HANDSHAKE and self.session.tls is None:
                self.hang_up(Hangup(replies.TLS_ON_CLEAR_PORT))
        if self._closing:
            return
        self.inbox.feed(data)
        self._wake()
        if len(self.inbox) > self.listener.limits.unread and not (self._paused or self._closing):
            self._paused = True
            self.transport.pauseProducing()

    def handshakeCompleted(self) -> None:
        stop(self._handshake)
        self.session.tls = _describe(self.transport.getHandle())

    def readConnectionLost(self) -> None:
        """The client has no more to say, but may still listen: what it said is answered."""
        self._ended = True
        if self._waiting is not None:
            self._wake(Gone())

    def writeConnectionLost(self) -> None:
        """Replies go nowhere now; the read side ends the session."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._lost = self._ended = self._closing = True
        for call in (self._alarm, self._handshake, self._grace):
            stop(call)
        self._wake(Gone())
        if self._pause is not None:
            self._pause[0].cancel()
            self._resume_paused(self._pause[1])
        if self._over:
            self._owner.left(self)

    def pauseProducing(self) -> None:
        """The client does not read its replies: no command is taken until it does."""
        self._full = True

    def resumeProducing(self) -> None:
        self._full = False
        self._wake()

    def stopProducing(self) -> None:
        """The connection is lost; connectionLost follows."""

    # ── what the conversation uses ──

    @property
    def ready(self) -> bool:
        return not self._full

    async def more(self, until: float, *, in_body: bool = False) -> None:
        if self._stopping is not None and not in_body:
            raise self._stopping
        if self._ended:
            raise Gone()
        self.flush()
        if self._paused and not self._full:
            self._paused = False
            self.transport.resumeProducing()
        self._unrested = 0
        self._until, self._in_body = until, in_body
        self._set_alarm()
        self._waiting = Deferred()
        await self._waiting

    def tired(self) -> bool:
        if self._stopping is not None:
            raise self._stopping
        if self._lost:
            raise Gone()
        self._unrested += 1
        return self._unrested > _LINES_A_TURN

    async def rest(self) -> None:
        self._unrested = 0
        self.flush()
        turn: Deferred[None] = Deferred()
        self.clock.callLater(0, self._resume, turn, None)
        await turn

    async def pause(self, seconds: float) -> None:
        if self._lost:
            return
        self.flush()
        over: Deferred[None] = Deferred()
        self._pause = self.clock.callLater(seconds, self._resume_paused, over), over
        await over

    def send(self, reply: Reply) -> None:
        """One reply; those of one turn go out in one write."""
        octets = encode(reply)
        if self.session.transcript is not None:
            self.session.transcript.server(octets, refusal=reply.code >= 400)
        self._out.append(octets)
        if not self._gathering:
            self.flush()

    def flush(self) -> None:
        if self._out:
            octets = b"".join(self._out)
            self._out.clear()
            if not self._lost:
                self.transport.write(octets)

    def secure(self) -> None:
        """Start TLS; nothing said in clear counts from here on."""
        self.flush()
        self.inbox.clear()
        self._shake_hands()
        self.transport.startTLS(self.listener.context)

    def finish(self, *, abort: bool = False) -> None:
        """The conversation is over. A peer that does not take the last reply is not waited for long."""
        self.flush()
        self._closing = True
        if self._lost:
            return
        stop(self._handshake)
        if abort:
            self.transport.abortConnection()
            return
        self.transport.unregisterProducer()
        if self._paused:  # so that the end of the connection is seen
            self.transport.resumeProducing()
        self.transport.loseConnection()
        self._grace = self.clock.callLater(self.listener.limits.grace, self.transport.abortConnection)

    # ── what the owner of the port uses ──

    def hang_up(self, end: Hangup) -> None:
        """End the session at the next command; a body that is under way is finished first."""
        self._stopping = end
        if self._waiting is not None and not self._in_body:
            self._wake(end)

    # ── inside ──

    async def _converse(self) -> None:
        try:
            reception = self._welcomed()
            if isinstance(reception, Reply):
                self.send(reception)
                self.finish()
            else:
                await Conversation(self, self.listener, self.session, reception).run()
        finally:
            self._over = True
            if self._lost:
                self._owner.left(self)

    def _welcomed(self) -> Reception | Reply:
        try:
            return self._welcome(self.session)
        except Exception:
            log.failure("nobody could be found to receive a connection")
            return replies.BROKEN

    def _wake(self, error: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._resume(waiting, None if error is None else Failure(error))

    def _resume(self, waiting: Deferred[None], result: Failure | None) -> None:
        """The conversation goes on, and what it says before it waits again leaves in one write."""
        self._gathering = True
        try:
            waiting.callback(result)
        finally:
            self._gathering = False
            self.flush()

    def _resume_paused(self, over: Deferred[None]) -> None:
        self._pause = None
        self._resume(over, None)

    def _set_alarm(self) -> None:
        """One timer for all waits. The deadlines of a connection only move forward, so it may ring too early, never late."""
        if self._alarm is None:
            self._alarm = self.clock.callLater(max(0.0, self._until - self.clock.seconds()), self._rang)

    def _rang(self) -> None:
        self._alarm = None
        if self._waiting is None:
            return
        if self.clock.seconds() < self._until:
            self._set_alarm()
            return
        self._wake(Late())

    def _shake_hands(self) -> None:
        self.session.tls = {}
        self._handshake = self.clock.callLater(self.listener.limits.handshake, self.transport.abortConnection)

    def _peer(self) -> Peer:
        peer, host = self.transport.getPeer(), self.transport.getHost()
        return Peer(getattr(peer, "host", ""), getattr(peer, "port", 0), getattr(host, "port", 0))


class _Handle(Protocol):
    def get_protocol_version_name(self) -> str: ...

    def get_cipher_name(self) -> str | None: ...

    def get_group_name(self) -> str | None: ...


def _describe(handle: object) -> Mapping[str, str]:
    tls = cast(_Handle, handle)
    facts = {"version": tls.get_protocol_version_name(), "cipher": tls.get_cipher_name() or ""}
    try:
        group = tls.get_group_name()
    except (AttributeError, RuntimeError):  # not every OpenSSL tells
        group = None
    return facts | ({"group": group} if group else {})


def stop(call: IDelayedCall | None) -> None:
    if call is not None and call.active():
        call.cancel()
