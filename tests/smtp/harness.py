"""A receiving session without a network: a transport in memory, a clock that the test moves, a reception that remembers."""

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
from mailsvc.smtp.server.session import Envelope, Listener, Login, Reception, Recipient, Session, Sink

USER, PASSWORD = "mailsvc", "s3cret"


class Transport(StringTransport):
    """Remembers what was done to it; a TLS handshake takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.tls = self.aborted = self.lost = False
        self.writes: list[bytes] = []
        self.receiver: ServerProtocol | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        super().write(data)

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.nodelay = enabled

    def startTLS(self, context: object) -> None:
        self.tls = True
        assert self.receiver is not None
        self.receiver.handshakeCompleted()

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
    """Answers by local part and keeps everything. `wait` is awaited before each answer."""

    session: Session
    wait: Callable[[], Deferred[None]] | None = None
    mails: list[Mail] = attrs.field(factory=list)
    calls: list[str] = attrs.field(factory=list)
    drops: int = 0
    sinks: int = 0
    dropped_times: int = 0

    async def _answer(self, call: str) -> None:
        self.calls.append(call)
        if self.wait is not None:
            await self.wait()

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        await self._answer("authenticate")
        if user == "broken":
            return Reply(454, "Temporary authentication failure", "4.7.0")
        return Login(user) if (user, password) == (USER, PASSWORD) else replies.LOGIN_FAILED

    async def vouched(self) -> None:
        await self._answer("vouched")

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        await self._answer("mail")
        if sender.local == "refused":
            return Reply(550, "Not from you", "5.7.1")
        if sender.local == "crash":
            raise RuntimeError("a bug")
        return replies.SENDER_OK

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        await self._answer("rcpt")
        if recipient.path.local == "unknown":
            return Reply(550, "No such mailbox", "5.1.1")
        return replies.RECIPIENT_OK

    async def body(self, envelope: Envelope) -> Sink | Reply:
        await self._answer("body")
        if envelope.sender.local == "full":
            return Reply(452, "No room", "4.3.1")
        self.sinks += 1
        return _Pieces(self, envelope)

    def dropped(self) -> None:
        self.dropped_times += 1


@attrs.define(eq=False)
class _Pieces:
    recorder: Recorder
    envelope: Envelope
    pieces: list[bytes] = attrs.field(factory=list)
    done: int = 0

    def write(self, piece: bytes) -> None:
        assert not self.done
        if self.envelope.sender.local == "disk":
            raise OSError("No space left on device")
        self.pieces.append(piece)

    async def finish(self) -> Reply:
        self.done += 1
        assert self.done == 1
        await self.recorder._answer("finish")
        if self.envelope.sender.local == "down":
            return Reply(451, "The database is not available", "4.3.0")
        self.recorder.mails.append(Mail(self.envelope, b"".join(self.pieces)))
        return Reply(250, f"Queued as {len(self.recorder.mails)}", "2.0.0")

    def drop(self) -> None:
        self.done += 1
        assert self.done == 1
        self.recorder.drops += 1


class Call:
    """One connection to a listener. All of them are hung up after each test (conftest)."""

    all: ClassVar[list[Call]] = []

    def __init__(
        self,
        listener: Listener,
        clock: Clock | None = None,
        welcome: Callable[[Session], Reception | Reply] | None = None,
        slow: bool = False,
    ) -> None:
        self.clock = clock or Clock()
        self.slow = slow
        self.recorder: Recorder | None = None
        self.receivers = ServerFactory(listener, welcome or self._welcome, self.clock)
        self.receiver = self.receivers.buildProtocol(None)
        self.transport = Transport()
        self.transport.receiver = self.receiver
        self.receiver.makeConnection(self.transport)
        self.all.append(self)

    def _welcome(self, session: Session) -> Reception:
        self.recorder = Recorder(session, self._wait if self.slow else None)
        return self.recorder

    def _wait(self) -> Deferred[None]:
        later: Deferred[None] = Deferred()
        self.clock.callLater(1.0, later.callback, None)
        return later

    def say(self, octets: bytes, *, split: bool = False) -> None:
        """Send; after the server closed nothing arrives any more."""
        size = 1 if len(octets) <= 100_000 else 997
        pieces = [octets[i : i + size] for i in range(0, len(octets), size)] if split else [octets] if octets else []
        for piece in pieces:
            if self.closed:
                break
            self.receiver.dataReceived(piece)
        self.settle()

    def settle(self) -> None:
        """Let everything that waits for no more than a reception happen."""
        for _ in range(10_000):
            due = [call for call in self.clock.getDelayedCalls() if call.getTime() - self.clock.seconds() <= 1.0]
            if not due:
                break
            self.clock.advance(max(0.0, min(call.getTime() for call in due) - self.clock.seconds()))
        if self.closed:
            self.hang_up()

    def heard(self) -> bytes:
        """The replies since the last look."""
        octets = self.transport.value()
        self.transport.clear()
        return octets

    @property
    def closed(self) -> bool:
        return self.transport.disconnecting

    def hang_up(self) -> None:
        if not self.transport.lost:
            self.transport.lost = True
            self.receiver.connectionLost()

    @property
    def mails(self) -> list[Mail]:
        assert self.recorder is not None
        return self.recorder.mails
