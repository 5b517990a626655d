"""The facts of a receiving session, and the interfaces through which its owner decides about mail.

The server (smtp/server/conversation) speaks SMTP and knows no policy; a SessionPolicy knows policy and no SMTP.
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
    """The address of the client, and the port that it connected to."""

    host: str
    port: int
    local_port: int


@attrs.frozen
class Login:
    """An authenticated client. `caller` is the policy's own; `by_address`: the client's address was enough, it sent no credentials."""

    user: str
    caller: object = None
    by_address: bool = False


@attrs.define(eq=False)
class Session:
    """The facts of one connection. The server keeps them, the policy reads them."""

    peer: Peer
    transcript: Transcript | None  # None: not kept
    opened: float = 0.0  # unix seconds
    login_required: bool = False  # on this port
    tls: Mapping[str, str] | None = None  # version, cipher, and the group of the key exchange if it is known; None: clear text
    client_name: str | None = None  # the argument of EHLO or HELO
    extended: bool = False  # EHLO rather than HELO
    login: Login | None = None
    trusted_network: bool = False  # the client's address may be enough to log it in; set by the policy
    mails: int = 0  # accepted since the present login
    closing: bool = False  # the server shuts down: a first mail is still accepted, but no other

    def restart(self) -> None:
        """After a TLS handshake nothing that was said before it counts (3207 §4.2)."""
        self.client_name, self.extended, self.login = None, False, None

    def change_login(self) -> None:
        """Another account logged in, which must not read what was said before."""
        self.mails = 0
        if self.transcript is not None:
            self.transcript = Transcript()

    @property
    def protocol(self) -> str:
        """The `with` clause of a Received field (3848). A means that the client used AUTH."""
        if not self.extended:
            return "SMTP"
        authenticated = self.login is not None and not self.login.by_address
        return "ESMTP" + ("S" if self.tls is not None else "") + ("A" if authenticated else "")


@attrs.frozen
class Recipient:
    path: Path
    parameters: RcptParameters


@attrs.define(eq=False)
class Envelope:
    """A mail transaction in progress: its sender and its recipients so far."""

    sender: Path
    parameters: MailParameters
    recipients: list[Recipient] = attrs.field(factory=list)  # those that were accepted


class Sink(Protocol):
    """Receives a message body. Exactly one of `finish` and `discard` is called, once."""

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """Store the next bytes, without dot-stuffing. The result, if any, is awaited before the next call. If the bytes cannot be
        stored, either of the two raises Refused (replies)."""

    async def finish(self) -> Reply:
        """The body is complete and well formed. A 2yz reply promises that it is stored durably. Never cancelled."""

    def discard(self) -> None:
        """The body is faulty or incomplete."""


class SessionPolicy(Protocol):
    """Decides for one connection. Calls never overlap, and none is cancelled."""

    async def authenticate(self, user: str, password: str) -> Login | Reply: ...

    async def login_by_address(self) -> Login | Reply | None:
        """Log in a client in a trusted network that needs a login and has none. None: its address is not enough."""

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply: ...

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply: ...

    async def body(self, envelope: Envelope) -> Sink | Reply:
        """The client begins a body; at least one recipient was accepted."""

    def closed(self) -> None:
        """The session has ended. Called once, last."""


class SessionFactory(Protocol):
    """Returns the policy of a new connection, or the reply that refuses it (421, 554)."""

    def __call__(self, session: Session) -> SessionPolicy | Reply: ...


@attrs.frozen
class Limits:
    """What a client may do before its connection is closed."""

    size: int = 41943040  # bytes of a message
    recipients: int = 1000  # of one mail; as many again are refused, then the session ends
    mails: int | None = None  # of one connection; None: no limit
    errors: int = 20
    non_mail_commands: int = 100  # between two mails, other than MAIL, RCPT, DATA and BDAT
    logins: int = 3  # failed ones
    tarpit: float = 1.0  # seconds before a login is refused, and before each error after half of `errors`; 0: at once
    idle: float = 300.0  # seconds for a command line to be complete, 5321 §4.5.3.2.7
    handshake: float = 10.0  # seconds for TLS
    rate: int = 500  # bytes per second of a body, over each span of `idle` seconds
    average: int = 8 * 1024  # bytes per second of a whole body, for its declared size or else `size`, after `idle` seconds
    unauthenticated_seconds: float | None = 60.0  # until login or a first accepted recipient; None: no limit
    unauthenticated_bytes: int | None = 8192  # of commands, before the same; None: no limit
    grace: float = 10.0  # seconds for the client to read the last reply
    unread: int = 65536  # bytes in the input buffer above which reading pauses while nobody waits for them


@attrs.frozen
class Listener:
    """One listening port: its name, what it offers and what it requires."""

    host: str  # this server's name in the greeting
    limits: Limits = Limits()
    context: object | None = None  # makes TLS connections (IOpenSSLServerConnectionCreator); None: no STARTTLS
    tls_required: bool = False
    login_offered: bool = False
    login_required: bool = False
    qualified_only: bool = True  # domains must be fully qualified, 6409 §4.2
    transcripts: bool = True
