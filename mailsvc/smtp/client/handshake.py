"""A connection from the server's greeting until it is ready for mail: EHLO, STARTTLS, EHLO again, AUTH. Sending messages: client."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Literal

import attrs
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHandshakeListener, IReactorTime
from zope.interface import implementer

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.capabilities import Capabilities, from_ehlo, from_helo
from mailsvc.smtp.client.connection import ClientConnection
from mailsvc.smtp.client.deadlines import Timeouts
from mailsvc.smtp.client.replies import ReplyReader
from mailsvc.smtp.client.tls import ClientTls, Untrusted, describe, explain, unverified

TlsPolicy = Literal["opportunistic", "required", "none"]
_NOT_NOW = (500, 501, 502, 503, 504)  # replies to EHLO of servers that expect another command


class NotReady(Exception):
    """The connection never became ready for mail. `transcript` is the session's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transcript = ""


class GreetingRefused(NotReady):
    """The server refused the connection, EHLO or HELO with `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class LoginRefused(GreetingRefused):
    """The server refused the credentials."""


class TlsFailed(NotReady):
    """TLS was required but not offered, or failed, or EHLO was refused inside it. Unless a policy requires TLS, clear text may be tried."""


class Lost(NotReady):
    """The connection was lost, or had to be closed, without a reply that explains it."""


class Canceled(NotReady):
    """The caller canceled `ready`."""


@attrs.frozen
class Login:
    """Credentials for a smarthost, for AUTH PLAIN inside TLS."""

    user: str
    password: str = attrs.field(repr=False)


@implementer(IHandshakeListener)
class Handshake(ClientConnection):
    """`ready` fires once, with the server's capabilities or with a NotReady."""

    def __init__(
        self,
        clock: IReactorTime,
        ehlo_name: str,
        *,
        timeouts: Timeouts | None = None,
        tls: TlsPolicy = "opportunistic",
        host: str = "",
        tls_options: ClientTls | None = None,
        login: Login | None = None,
        transcript: bool = True,
    ) -> None:
        super().__init__(clock, timeouts or Timeouts(), transcript)
        self._ehlo_name = ehlo_name.encode("ascii")
        self._tls_policy: TlsPolicy = tls
        self._tls_options = tls_options or unverified(host)
        self._login = login
        self._on_reply = self._greeting_reply
        self._awaiting_ready: Deferred[Capabilities] | None = Deferred(self._ready_canceled)
        self.ready: Deferred[Capabilities] = self._awaiting_ready
        self.capabilities: Capabilities | None = None
        self.tls: str | None = None  # version and cipher
        self._refused_tls = ""  # the reply that refused STARTTLS, as the beginning of a sentence
        self._trying_tls = False  # STARTTLS was sent, and the session has not continued yet
        self._ended = ""  # why the connection ended

    def connectionMade(self) -> None:
        super().connectionMade()
        self._connected_at = self._clock.seconds()
        self._expect_reply(self._greeting_reply, self._timeouts.greeting, "greeting")

    @property
    def tls_refused(self) -> bool:
        """Whether the server announces STARTTLS, but refused it."""
        return bool(self._refused_tls)

    def certificate_fault(self) -> str | None:
        """Why the server's certificate would be refused if it had to be trusted. Only with TLS; None if the connection is closed."""
        return self._tls_options.would_refuse(self.transport.getHandle()) if self._open else None

    def handshakeCompleted(self) -> None:
        if not self._open:
            return
        connection = self.transport.getHandle()
        self.tls = describe(connection)
        self._transcript.note(self.tls)
        try:
            self._tls_options.check(connection)
        except Untrusted as fault:
            self._refuse(TlsFailed(str(fault)))
            self._fire_results()
            return
        # RFC 3207 §4.2: discard what the server announced before.
        self._replies = ReplyReader()
        self.capabilities = None
        self._trying_tls = False
        self._send_ehlo()

    def _expect_reply(self, on_reply: Callable[[Reply], None], seconds: float, what: str) -> None:
        self._on_reply = on_reply
        self._deadline.set(min(self._clock.seconds() + seconds, self._connected_at + self._timeouts.setup), what)

    def _fail(self, reason: str) -> None:
        self._refuse(TlsFailed(f"{self._refused_tls}{reason}") if self._trying_tls else Lost(reason))

    def _connection_cut(self, error: BaseException) -> None:
        before_ehlo = self.tls is not None and self.capabilities is None and isinstance(error, SSL.Error)
        if self._trying_tls:
            self._fail(self._tls_options.fault or explain(error))
        elif before_ehlo:  # in TLS 1.3 the server's alert arrives after this side has completed the handshake
            self._refuse(TlsFailed(self._tls_options.fault or explain(error)))
        else:
            self._fail(explain(error))

    def _ready_canceled(self, _result: Deferred[Capabilities]) -> None:
        self._refuse(Canceled("canceled"))
        self._fire_results()

    def _refuse(self, error: NotReady, polite: bool = False) -> None:
        """Close the connection for `error`, and fail what waits for it; `polite`: send QUIT first."""
        if not self._open:
            return
        if polite:
            self._close_politely()
        else:
            self._close()
        begun = self._replies.begun()
        if begun is not None:
            self._transcript.server(begun.raw, self._clock.seconds())
        self._ended = error.reason
        self._transcript.note(error.reason)
        ready, self._awaiting_ready = self._awaiting_ready, None
        if ready is None:
            self._failed(error.reason)
            return
        error.transcript = str(self._transcript)
        self._results.append((ready, error))

    def _failed(self, reason: str) -> None:
        """The connection failed after it had become ready."""

    # Greeting, EHLO, HELO

    def _greeting_reply(self, reply: Reply) -> None:
        if reply.code >= 300:
            self._session_refused(reply)
        else:
            self._send_ehlo()

    def _session_refused(self, reply: Reply) -> None:
        self._refuse(GreetingRefused(reply), polite=reply.code != 421)  # 5321 §3.1: QUIT, unless the server closes the connection

    def _send_ehlo(self) -> None:
        self._send_command(b"EHLO " + self._ehlo_name, self._ehlo_reply, self._timeouts.ehlo, "reply to EHLO")

    def _send_command(self, command: bytes, on_reply: Callable[[Reply], None], seconds: float, what: str, shown: bytes = b"") -> None:
        """Send a command; the transcript shows `shown` instead, if given. Data that arrived before cannot be its reply."""
        if self._read_unasked_reply():
            return
        self._transcript.client(shown or command)
        self.transport.write(command + b"\r\n")
        self._expect_reply(on_reply, seconds, what)

    def _read_unasked_reply(self) -> bool:
        """Whether the server sent more than a reply; the session then ends with what that says."""
        if self._replies.pending:
            self._expect_reply(self._unasked_reply, self._timeouts.ehlo, "the rest of an unexpected reply")
            return True
        return False

    def _unasked_reply(self, reply: Reply) -> None:
        if reply.code >= 400:
            self._session_refused(reply)
        else:
            self._unsolicited(reply)

    def _ehlo_reply(self, reply: Reply) -> None:
        if reply.code < 300:
            self._capabilities_known(from_ehlo(reply))
        elif reply.code in (500, 502):  # 5321 §3.2: the server does not know EHLO; any other code is a refusal
            self._send_command(b"HELO " + self._ehlo_name, self._helo_reply, self._timeouts.ehlo, "reply to HELO")
        else:
            self._ehlo_refused(reply)

    def _helo_reply(self, reply: Reply) -> None:
        if reply.code < 300:
            self._capabilities_known(from_helo(reply))
        else:
            self._ehlo_refused(reply)

    def _ehlo_refused(self, reply: Reply) -> None:
        if self.tls is not None and self._tls_policy == "opportunistic" and reply.code in _NOT_NOW:
            # It accepted EHLO before, and has to accept it again after the handshake (3207 §4.2).
            self._refuse(TlsFailed(f"after the handshake, EHLO was refused: {reply}"), polite=True)
        else:
            self._session_refused(reply)

    def _capabilities_known(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        if self.tls is not None or self._tls_policy == "none" or self._refused_tls:
            self._trying_tls = False
            self._log_in()
        elif capabilities.starttls:
            self._send_command(b"STARTTLS", self._starttls_reply, self._timeouts.tls, "reply to STARTTLS")
            self._trying_tls = self._on_reply == self._starttls_reply
        elif self._tls_policy == "required":
            self._refuse(TlsFailed("TLS is required, but the server does not offer STARTTLS"), polite=True)
        else:
            self._log_in()

    # TLS (RFC 3207)

    def _starttls_reply(self, reply: Reply) -> None:
        if reply.code == 421:
            self._session_refused(reply)
        elif reply.code < 300:
            self._start_tls()
        elif self._tls_policy == "required":
            self._refuse(TlsFailed(f"STARTTLS was refused: {reply}"), polite=True)
        else:  # EHLO again: many servers close the connection now, and this shows it before a mail depends on it
            self._refused_tls = f"STARTTLS was refused: {reply}; then "
            self._send_ehlo()

    def _start_tls(self) -> None:
        if self._replies.pending:  # may have been injected: it came before the keys were known
            self._refuse(TlsFailed("clear-text data followed the reply to STARTTLS"))
            return
        self._expect_reply(self._clear_text_reply, self._timeouts.tls, "TLS handshake")
        try:
            self.transport.startTLS(self._tls_options)
        except Exception as error:
            self._refuse(TlsFailed(explain(error)))

    def _clear_text_reply(self, _reply: Reply) -> None:
        self._refuse(TlsFailed("a clear-text reply during the TLS handshake"))

    # AUTH (RFC 4954)

    def _log_in(self) -> None:
        if self._login is None:
            self._become_ready()
        elif self.tls is None:
            self._refuse(TlsFailed("credentials are only sent inside TLS, and the connection has none"), polite=True)
        elif self.capabilities is None or "PLAIN" not in self.capabilities.mechanisms:
            self._refuse(LoginRefused(Reply(504, "The server does not offer AUTH PLAIN", "5.5.4")), polite=True)
        else:
            secret = base64.b64encode(f"\0{self._login.user}\0{self._login.password}".encode())
            shown = b"AUTH PLAIN (credentials)"
            self._send_command(b"AUTH PLAIN " + secret, self._auth_reply, self._timeouts.login, "reply to AUTH", shown)

    def _auth_reply(self, reply: Reply) -> None:
        if reply.code < 300:
            self._become_ready()
        else:
            self._refuse(LoginRefused(reply), polite=reply.code != 421)

    def _become_ready(self) -> None:
        if self._read_unasked_reply():
            return
        ready, self._awaiting_ready = self._awaiting_ready, None
        self._idle()
        if ready is not None:
            self._results.append((ready, self.capabilities))
