"""What a receiving session consists of, and the two interfaces by which its owner decides about mail.

The server (smtp/server/conversation) speaks SMTP and knows no policy; a Reception knows policy and no SMTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

import attrs

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.smtp.server.extensions import MailParameters, RcptParameters
from mailsvc.smtp.server.transcript import Transcript


@attrs.frozen
class Peer:
    """Who connected, and to which of our ports."""

    host: str
    port: int
    local_port: int


@attrs.frozen
class Login:
    """An authenticated client; `caller` is whatever the reception knows it by, `vouched` that its address was enough for that."""

    user: str
    caller: object = None
    vouched: bool = False


@attrs.define(eq=False)
class Session:
    """The facts of one connection, kept by the server, read by the reception."""

    peer: Peer
    transcript: Transcript | None  # None: none is kept
    opened: float = 0.0  # unix seconds
    tls: Mapping[str, str] | None = None  # version, cipher, and the group of the key exchange where it is known; None: in clear
    hello: str | None = None  # the argument of EHLO or HELO
    extended: bool = False  # EHLO rather than HELO
    login: Login | None = None
    neighbour: bool = False  # its address may be enough for a login, says the welcome
    mails: int = 0  # accepted in this session, since somebody else logged in
    leaving: bool = False  # the server goes: a first mail is still taken, no further one

    def forget(self) -> None:
        """After a TLS handshake nothing that was said before it counts (3207 §4.2)."""
        self.hello, self.extended, self.login = None, False, None

    def anew(self) -> None:
        """Somebody else has logged in, who does not get to read what was said before."""
        self.mails = 0
        if self.transcript is not None:
            self.transcript = Transcript()

    @property
    def protocol(self) -> str:
        """The `with` clause of a Received field (3848); A is for AUTH alone."""
        if not self.extended:
            return "SMTP"
        authenticated = self.login is not None and not self.login.vouched
        return "ESMTP" + ("S" if self.tls is not None else "") + ("A" if authenticated else "")


@attrs.frozen
class Recipient:
    path: Path
    parameters: RcptParameters


@attrs.define(eq=False)
class Envelope:
    """A mail transaction: who sends it to whom, as far as it has come."""

    sender: Path
    parameters: MailParameters
    recipients: list[Recipient] = attrs.field(factory=list)  # those that were accepted


class Sink(Protocol):
    """Where a body goes. Exactly one of `finish` and `drop` is called, once."""

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """The next octets, unstuffed. What it gives is awaited before anything else is asked of it. Raises Refused (replies), at once
        or then, when it cannot keep them."""

    async def finish(self) -> Reply:
        """The body is complete and well formed. 2yz means that it is kept for good. Never cancelled."""

    def drop(self) -> None:
        """The body is faulty or was cut off: forget it."""


class Reception(Protocol):
    """Decides about one connection. Never called before the previous call has been answered; no call is cancelled."""

    async def authenticate(self, user: str, password: str) -> Login | Reply: ...

    async def vouched(self) -> Login | Reply | None:
        """A neighbour needs a login and has none: whom their address stands for. None: nobody."""

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply: ...

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply: ...

    async def body(self, envelope: Envelope) -> Sink | Reply:
        """At least one recipient was accepted and a body is announced."""

    def dropped(self) -> None:
        """The connection is over. Called once, last."""


class Welcome(Protocol):
    """Makes the reception of a new connection, or says why there is none (421, 554)."""

    def __call__(self, session: Session) -> Reception | Reply: ...


@attrs.frozen
class Limits:
    """What a client may do before it is sent away."""

    size: int = 41943040
    recipients: int = 1000  # of one mail; so many again are refused, then the session ends
    mails: int | None = None  # per connection; None: any number
    errors: int = 20
    chatter: int = 100  # commands between two mails that do not help a mail along
    logins: int = 3  # failed ones
    tarpit: float = 1.0  # seconds before the refusal of a login, and of a client that has made half of its errors; 0: none
    idle: float = 300.0  # for a command line to be complete, 5321 §4.5.3.2.7
    handshake: float = 10.0
    rate: int = 500  # octets a second of a body, over each span of `idle` seconds
    average: int = 8 * 1024  # bytes a second of a whole body, of the size that was announced or else of the largest, after `idle` seconds
    stranger_seconds: float | None = 60.0  # until login or a first accepted recipient; None: no such limit
    stranger_octets: int | None = 8192
    grace: float = 10.0  # for the peer to take the last reply
    unread: int = 65536  # octets waiting to be taken, above which the peer is paused


@attrs.frozen
class Listener:
    """One listening port: its name, what it offers and what it demands."""

    host: str  # our name in the greeting
    limits: Limits = Limits()
    context: object | None = None  # makes TLS connections (IOpenSSLServerConnectionCreator); None: no STARTTLS
    tls_required: bool = False
    login_offered: bool = False
    login_required: bool = False
    qualified: bool = True  # domains need a dot, 6409 §4.2
    transcripts: bool = True
