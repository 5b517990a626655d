"""A receiving session without a network: a transport in memory, a clock that the test advances, and a policy that records its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.extensions import MailParameters
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.protocol import ServerProtocol
from mailsvc.smtp.server.session import Envelope, Listener, Login, Recipient, Session, SessionPolicy, Sink

USER, PASSWORD = "mailsvc", "s3cret"


class Transport(StringTransport):
    """Records what was done to it. TLS handshakes take no time."""

    bufferSize = 65_536  # bytes that are read at once

    def __init__(self) -> None:
        super().__init__()
        self.tls = self.aborted = self.lost = False
        self.writes: list[bytes] = []
        self.protocol: ServerProtocol | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        super().write(data)

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.nodelay = enabled

    def startTLS(self, context: object) -> None:
        self.tls = True
        assert self.protocol is not None
        self.protocol.handshakeCompleted()

    def getHandle(self) -> Transport:
        return self

    def get_protocol_version_name(self) -> str:
        return "TLSv1.3"

    def get_cipher_name(self) -> str:
        return "TLS_AES_256_GCM_SHA384"

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


@attrs.define(eq=False)
class Mail:
    envelope: Envelope
    body: bytes

    @property
    def recipients(self) -> list[str]:
        return [recipient.path.address for recipient in self.envelope.recipients]


@attrs.define(eq=False)
class Recorder:
    """A policy that decides by local part and records everything. `wait` is awaited before each decision."""

    session: Session
    wait: Callable[[], Deferred[None]] | None = None
    mails: list[Mail] = attrs.field(factory=list)
    calls: list[str] = attrs.field(factory=list)
    discards: int = 0
    sinks: int = 0
    writing: Deferred[None] | None = None  # awaited after each piece of a body
    closed_times: int = 0

    async def _record(self, call: str) -> None:
        self.calls.append(call)
        if self.wait is not None:
            await self.wait()

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        await self._record("authenticate")
        if user == "broken":
            return Reply(454, "Temporary authentication failure", "4.7.0")
        return Login(user) if (user, password) == (USER, PASSWORD) else replies.LOGIN_FAILED

    async def login_by_address(self) -> None:
        await self._record("login_by_address")

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        await self._record("mail")
        if sender.local == "refused":
            return Reply(550, "Not from you", "5.7.1")
        if sender.local == "crash":
            raise RuntimeError("a bug")
        return replies.SENDER_OK

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        await self._record("rcpt")
        if recipient.path.local == "unknown":
            return Reply(550, "No such mailbox", "5.1.1")
        return replies.RECIPIENT_OK

    async def body(self, envelope: Envelope) -> Sink | Reply:
        await self._record("body")
        if envelope.sender.local == "full":
            return Reply(452, "No room", "4.3.1")
        self.sinks += 1
        return _Sink(self, envelope)

    def closed(self) -> None:
        self.closed_times += 1


@attrs.define(eq=False)
class _Sink:
    recorder: Recorder
    envelope: Envelope
    pieces: list[bytes] = attrs.field(factory=list)
    done: int = 0

    def write(self, piece: bytes) -> Deferred[None] | None:
        assert not self.done
        if self.envelope.sender.local == "disk":
            raise OSError("No space left on device")
        self.pieces.append(piece)
        return self.recorder.writing

    async def finish(self) -> Reply:
        self.done += 1
        assert self.done == 1
        await self.recorder._record("finish")
        if self.envelope.sender.local == "down":
            return Reply(451, "The database is not available", "4.3.0")
        self.recorder.mails.append(Mail(self.envelope, b"".join(self.pieces)))
        return Reply(250, f"Ok: queued as {len(self.recorder.mails)}", "2.0.0")

    def discard(self) -> None:
        self.done += 1
        assert self.done == 1
        self.recorder.discards += 1


class Client:
    """One connection to a listener. All of them are hung up after each test (conftest)."""

    all: ClassVar[list[Client]] = []

    def __init__(
        self,
        listener: Listener,
        clock: Clock | None = None,
        open_session: Callable[[Session], SessionPolicy | Reply] | None = None,
        slow: bool = False,
    ) -> None:
        self.clock = clock or Clock()
        self.slow = slow
        self.recorder: Recorder | None = None
        self.factory = ServerFactory(listener, open_session or self._open_session, self.clock)
        self.protocol = self.factory.buildProtocol(None)
        self.transport = Transport()
        self.transport.protocol = self.protocol
        self.protocol.makeConnection(self.transport)
        self.all.append(self)

    def _open_session(self, session: Session) -> SessionPolicy:
        self.recorder = Recorder(session, self._wait if self.slow else None)
        return self.recorder

    def _wait(self) -> Deferred[None]:
        later: Deferred[None] = Deferred()
        self.clock.callLater(1.0, later.callback, None)
        return later

    def send(self, data: bytes, *, split: bool = False) -> None:
        """Send data, all at once or byte by byte. Nothing arrives once the server has closed the connection."""
        size = 1 if len(data) <= 100_000 else 997
        pieces = [data[i : i + size] for i in range(0, len(data), size)] if split else [data] if data else []
        for piece in pieces:
            if self.closed:
                break
            self.protocol.dataReceived(piece)
        self.settle()

    def settle(self) -> None:
        """Advance the clock until nothing waits for a decision of the policy."""
        for _ in range(10_000):
            due = [call for call in self.clock.getDelayedCalls() if call.getTime() - self.clock.seconds() <= 1.0]
            if not due:
                break
            self.clock.advance(max(0.0, min(call.getTime() for call in due) - self.clock.seconds()))
        if self.closed:
            self.disconnect()

    def received(self) -> bytes:
        """The replies since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return data

    @property
    def closed(self) -> bool:
        return self.transport.disconnecting

    def disconnect(self) -> None:
        if not self.transport.lost:
            self.transport.lost = True
            self.protocol.connectionLost()

    @property
    def mails(self) -> list[Mail]:
        assert self.recorder is not None
        return self.recorder.mails
