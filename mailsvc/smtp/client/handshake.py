"""A connection to a server, from its greeting until it is ready for mail: EHLO, STARTTLS, EHLO again, AUTH.

Sending messages is client.Courier's part.
"""

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
from mailsvc.smtp.client.connection import Connection
from mailsvc.smtp.client.deadlines import Timeouts
from mailsvc.smtp.client.replies import ReplyReader
from mailsvc.smtp.client.tls import ClientTls, Untrusted, describe, explain, unverified

TlsPolicy = Literal["opportunistic", "required", "none"]


class NotReady(Exception):
    """The connection never became ready for mail. `transcript` is what was said."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transcript = ""


class GreetingRefused(NotReady):
    """The server wants no mail from this connection: its reply to the connection itself, to EHLO or to HELO."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class LoginRefused(GreetingRefused):
    """The server did not take our credentials."""


class TlsFailed(NotReady):
    """No TLS where it was required, or a handshake that failed. Without a policy, the same host may be tried in clear."""


class Lost(NotReady):
    """The connection ended, or had to be ended, for no reply that could be shown."""


class Canceled(NotReady):
    """Whoever waited for `ready` canceled it."""


@attrs.frozen
class Login:
    """Credentials for a smarthost; used by AUTH PLAIN, inside TLS only."""

    user: str
    password: str = attrs.field(repr=False)


@implementer(IHandshakeListener)
class Handshake(Connection):
    """Becomes ready, or not, once: `ready` fires with the server's offers, or fails with a NotReady."""

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
        self._policy: TlsPolicy = tls
        self._tls_options = tls_options or unverified(host)
        self._login = login
        self._take = self._greeting
        self._setting_up: Deferred[Capabilities] | None = Deferred(self._given_up)
        self.ready: Deferred[Capabilities] = self._setting_up
        self.offers: Capabilities | None = None
        self.tls: str | None = None  # version and cipher
        self._refused_tls = ""  # what was said to STARTTLS, as the beginning of a sentence
        self._trying_tls = False  # STARTTLS was sent, and the session has not yet shown that it goes on
        self._ended = ""  # why the connection ended

    def connectionMade(self) -> None:
        super().connectionMade()
        self._connected_at = self._clock.seconds()
        self._expect(self._greeting, self._timeouts.greeting, "greeting")

    def handshakeCompleted(self) -> None:
        if not self._open:
            return
        connection = self.transport.getHandle()
        self.tls = describe(connection)
        self._dialogue.note(self.tls)
        try:
            self._tls_options.check(connection)
        except Untrusted as fault:
            self._refuse(TlsFailed(str(fault)))
            self._tell()
            return
        # RFC 3207 §4.2: what the server said before is forgotten.
        self._answers = ReplyReader()
        self.offers = None
        self._trying_tls = False
        self._greet()

    def _expect(self, take: Callable[[Reply], None], seconds: float, what: str) -> None:
        self._take = take
        self._deadline.set(min(self._clock.seconds() + seconds, self._connected_at + self._timeouts.setup), what)

    def _fail(self, reason: str) -> None:
        self._refuse(TlsFailed(f"{self._refused_tls}{reason}") if self._trying_tls else Lost(reason))

    def _cut(self, error: BaseException) -> None:
        unanswered = self.tls is not None and self.offers is None and isinstance(error, SSL.Error)
        if self._trying_tls:
            self._fail(self._tls_options.fault or explain(error))
        elif unanswered:  # TLS 1.3: the server's objection comes after our handshake
            self._refuse(TlsFailed(self._tls_options.fault or explain(error)))
        else:
            self._fail(explain(error))

    def _given_up(self, _waiting: Deferred[Capabilities]) -> None:
        self._refuse(Canceled("canceled"))
        self._tell()

    def _refuse(self, error: NotReady, polite: bool = False) -> None:
        """The end of the connection, which was not ready or is not any more."""
        if not self._open:
            return
        if polite:
            self._part()
        else:
            self._close()
        begun = self._answers.begun()
        if begun is not None:
            self._dialogue.server(begun.raw, self._clock.seconds())
        self._ended = error.reason
        self._dialogue.note(error.reason)
        waiting, self._setting_up = self._setting_up, None
        if waiting is None:
            self._failed(error.reason)
            return
        error.transcript = str(self._dialogue)
        self._news.append((waiting, error))

    def _failed(self, reason: str) -> None:
        """The connection ended after it had become ready."""

    # Greeting, EHLO, HELO

    def _greeting(self, reply: Reply) -> None:
        if reply.code >= 300:
            self._turned_away(reply)
        else:
            self._greet()

    def _turned_away(self, reply: Reply) -> None:
        self._refuse(GreetingRefused(reply), polite=reply.code != 421)  # 5321 §3.1: QUIT, unless the server is leaving

    def _greet(self) -> None:
        self._ask(b"EHLO " + self._ehlo_name, self._ehlo, self._timeouts.ehlo, "reply to EHLO")

    def _ask(self, command: bytes, take: Callable[[Reply], None], seconds: float, what: str, shown: bytes = b"") -> None:
        """Send a command; `shown` stands in the transcript instead of it. What has arrived before cannot be the reply to it."""
        if self._hears_out():
            return
        self._dialogue.client(shown or command)
        self.transport.write(command + b"\r\n")
        self._expect(take, seconds, what)

    def _hears_out(self) -> bool:
        """Whether the server said more than it was asked, so that the session ends with what that says."""
        if self._answers.pending:
            self._expect(self._unasked, self._timeouts.ehlo, "the rest of a reply that was not asked for")
            return True
        return False

    def _unasked(self, reply: Reply) -> None:
        if reply.code >= 400:
            self._turned_away(reply)
        else:
            self._unsolicited(reply)

    def _ehlo(self, reply: Reply) -> None:
        if reply.code < 300:
            self._greeted(from_ehlo(reply))
        elif reply.code in (500, 502):  # 5321 §3.2: it does not know the word; anything else is a refusal
            self._ask(b"HELO " + self._ehlo_name, self._helo, self._timeouts.ehlo, "reply to HELO")
        else:
            self._turned_away(reply)

    def _helo(self, reply: Reply) -> None:
        if reply.code < 300:
            self._greeted(from_helo(reply))
        else:
            self._turned_away(reply)

    def _greeted(self, offers: Capabilities) -> None:
        self.offers = offers
        if self.tls is not None or self._policy == "none" or self._refused_tls:
            self._trying_tls = False
            self._log_in()
        elif offers.starttls:
            self._ask(b"STARTTLS", self._starttls, self._timeouts.tls, "reply to STARTTLS")
            self._trying_tls = self._take == self._starttls
        elif self._policy == "required":
            self._refuse(TlsFailed("TLS is required, and the server does not offer STARTTLS"), polite=True)
        else:
            self._log_in()

    # TLS (RFC 3207)

    def _starttls(self, reply: Reply) -> None:
        if reply.code == 421:
            self._turned_away(reply)
        elif reply.code < 300:
            self._secure()
        elif self._policy == "required":
            self._refuse(TlsFailed(f"STARTTLS was refused: {reply}"), polite=True)
        else:  # EHLO again: many a server closes now, and that is then known before a mail depends on it
            self._refused_tls = f"STARTTLS was refused: {reply}; then "
            self._greet()

    def _secure(self) -> None:
        if self._answers.pending:  # written by someone who could not have known the keys
            self._refuse(TlsFailed("octets in clear followed the reply to STARTTLS"))
            return
        self._expect(self._octets_in_clear, self._timeouts.tls, "TLS handshake")
        try:
            self.transport.startTLS(self._tls_options)
        except Exception as error:
            self._refuse(TlsFailed(explain(error)))

    def _octets_in_clear(self, _reply: Reply) -> None:
        self._refuse(TlsFailed("a reply in clear during the handshake"))

    # AUTH (RFC 4954)

    def _log_in(self) -> None:
        if self._login is None:
            self._become_ready()
        elif self.tls is None:
            self._refuse(TlsFailed("credentials are sent inside TLS only, and there is none"), polite=True)
        elif self.offers is None or "PLAIN" not in self.offers.mechanisms:
            self._refuse(LoginRefused(Reply(504, "The server does not offer AUTH PLAIN", "5.5.4")), polite=True)
        else:
            secret = base64.b64encode(f"\0{self._login.user}\0{self._login.password}".encode())
            self._ask(b"AUTH PLAIN " + secret, self._logged_in, self._timeouts.login, "reply to AUTH", b"AUTH PLAIN (credentials)")

    def _logged_in(self, reply: Reply) -> None:
        if reply.code < 300:
            self._become_ready()
        else:
            self._refuse(LoginRefused(reply), polite=reply.code != 421)

    def _become_ready(self) -> None:
        if self._hears_out():
            return
        waiting, self._setting_up = self._setting_up, None
        self._rest()
        if waiting is not None:
            self._news.append((waiting, self.offers))
