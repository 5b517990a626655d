"""A connection to a server, from its greeting until it is ready for mail: EHLO, STARTTLS, EHLO again, AUTH.

Also what every phase needs: replies in, one deadline, one end. Sending messages is client.Courier's part.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Literal

import attrs
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IHandshakeListener, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from mailsvc.mail.reply import Reply
from mailsvc.smtp.answers import Answers, BadReply
from mailsvc.smtp.deadlines import Deadline, Timeouts
from mailsvc.smtp.dialogue import Dialogue
from mailsvc.smtp.offers import Offers, from_ehlo, from_helo
from mailsvc.smtp.tls import ClientTls, Untrusted, describe, explain, unverified

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


@attrs.frozen
class Login:
    """Credentials for a smarthost; used by AUTH PLAIN, inside TLS only."""

    user: str
    password: str = attrs.field(repr=False)


@implementer(IHandshakeListener)
class Session(Protocol):
    """Becomes ready, or not, once: `ready` fires with the server's offers, or fails with a NotReady."""

    transport: Any  # a TCP connection, which startTLS secures in place

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
        self._clock = clock
        self._ehlo_name = ehlo_name.encode("ascii")
        self._timeouts = timeouts or Timeouts()
        self._policy: TlsPolicy = tls
        self._tls_options = tls_options or unverified(host)
        self._login = login
        self._answers = Answers()
        self._deadline = Deadline(clock, self._expired)
        self._started = clock.seconds()
        self._dialogue = Dialogue(self._started, transcript)
        self._take: Callable[[Reply], None] = self._greeting
        self._open = False  # connected, and not given up by us
        self._gone = False  # connectionLost was called
        self._news: list[tuple[Deferred[Any], Any]] = []  # told when the octets at hand have been read
        self._closers: list[Deferred[None]] = []
        self._setting_up: Deferred[Offers] | None = Deferred(self._canceled)
        self.ready: Deferred[Offers] = self._setting_up
        self.offers: Offers | None = None
        self.tls: str | None = None  # version and cipher

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

    # The connection

    def connectionMade(self) -> None:
        self._open = True
        no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if no_delay is not None:
            no_delay(True)  # commands wait for no acknowledgement of the last ones
        self._started = self._dialogue.started = self._clock.seconds()
        self._expect(self._greeting, self._timeouts.greeting, "greeting")

    def dataReceived(self, data: bytes) -> None:
        if not self._open:
            return
        self._answers.push(data)
        now = self._clock.seconds()
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
            self._lost_connection(reason.value or ConnectionLost())
        self._deadline.stop()
        closers, self._closers = self._closers, []
        self._news += [(closer, None) for closer in closers]
        self._tell()

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
        self._answers = Answers()
        self.offers = None
        self._greet()

    # For every phase

    def _expect(self, take: Callable[[Reply], None], seconds: float, what: str) -> None:
        self._take = take
        due = self._clock.seconds() + seconds
        if self._setting_up is not None:
            due = min(due, self._started + self._timeouts.setup)
        self._deadline.set(due, what)

    def _say(self, line: bytes) -> None:
        self._dialogue.client(line.decode("utf-8", "backslashreplace"))
        self.transport.write(line + b"\r\n")

    def _fail(self, reason: str) -> None:
        """The connection cannot be used any more, by our own judgement."""
        self._refuse(Lost(reason))

    def _refuse(self, error: NotReady) -> None:
        if not self._open:
            return
        self._close()
        self._dialogue.note(error.reason)
        if self._setting_up is not None:
            error.transcript = str(self._dialogue)
            self._news.append((self._setting_up, error))
            self._setting_up = None
        else:
            self._failed(error.reason)

    def _close(self) -> None:
        self._open = False
        self._deadline.stop()
        if not self._gone:
            self.transport.abortConnection()

    def _failed(self, reason: str) -> None:
        """The connection ended after it had become ready."""

    def _tell(self) -> None:
        while self._news:
            waiting, value = self._news.pop(0)
            if isinstance(value, Exception):
                waiting.errback(value)
            else:
                waiting.callback(value)

    def _expired(self, what: str) -> None:
        self._fail(f"timed out waiting for: {what}")
        self._tell()

    def _canceled(self, _waiting: Deferred[Any]) -> None:
        self.abort("canceled")

    def _lost_connection(self, error: BaseException) -> None:
        reason = explain(error)
        securing = self._take == self._plain_octets or (self.offers is None and self.tls is not None and isinstance(error, SSL.Error))
        if securing:
            self._refuse(TlsFailed(self._tls_options.fault or reason))
        else:
            self._fail(reason)

    # Greeting, EHLO, HELO

    def _greeting(self, reply: Reply) -> None:
        if reply.code >= 300:
            self._refuse(GreetingRefused(reply))
        else:
            self._greet()

    def _greet(self) -> None:
        self._say(b"EHLO " + self._ehlo_name)
        self._expect(self._ehlo, self._timeouts.ehlo, "reply to EHLO")

    def _ehlo(self, reply: Reply) -> None:
        if reply.code < 300:
            self._greeted(from_ehlo(reply))
        elif reply.code in (500, 502):  # 5321 §3.2: it does not know the word; anything else is a refusal
            self._say(b"HELO " + self._ehlo_name)
            self._expect(self._helo, self._timeouts.ehlo, "reply to HELO")
        else:
            self._refuse(GreetingRefused(reply))

    def _helo(self, reply: Reply) -> None:
        if reply.code < 300:
            self._greeted(from_helo(reply))
        else:
            self._refuse(GreetingRefused(reply))

    def _greeted(self, offers: Offers) -> None:
        self.offers = offers
        if self.tls is not None or self._policy == "none":
            self._log_in()
        elif offers.starttls:
            self._say(b"STARTTLS")
            self._expect(self._starttls, self._timeouts.tls, "reply to STARTTLS")
        elif self._policy == "required":
            self._refuse(TlsFailed("TLS is required, and the server does not offer STARTTLS"))
        else:
            self._log_in()

    # TLS (RFC 3207)

    def _starttls(self, reply: Reply) -> None:
        if reply.code == 421:
            self._refuse(GreetingRefused(reply))
        elif reply.code < 300:
            self._secure()
        elif self._policy == "required":
            self._refuse(TlsFailed(f"STARTTLS was refused: {reply}"))
        else:
            self._log_in()

    def _secure(self) -> None:
        if self._answers.pending:  # written by someone who could not have known the keys
            self._refuse(TlsFailed("octets in clear followed the reply to STARTTLS"))
            return
        self._expect(self._plain_octets, self._timeouts.tls, "TLS handshake")
        try:
            self.transport.startTLS(self._tls_options)
        except Exception as error:
            self._refuse(TlsFailed(explain(error)))

    def _plain_octets(self, _reply: Reply) -> None:
        self._refuse(TlsFailed("a reply in clear during the handshake"))

    # AUTH (RFC 4954)

    def _log_in(self) -> None:
        if self._login is None:
            self._become_ready()
        elif self.tls is None:
            self._refuse(TlsFailed("credentials are sent inside TLS only, and there is none"))
        elif self.offers is None or "PLAIN" not in self.offers.mechanisms:
            self._refuse(LoginRefused(Reply(504, "The server does not offer AUTH PLAIN", "5.5.4")))
        else:
            secret = base64.b64encode(f"\0{self._login.user}\0{self._login.password}".encode())
            self._dialogue.client("AUTH PLAIN (credentials)")
            self.transport.write(b"AUTH PLAIN " + secret + b"\r\n")
            self._expect(self._logged_in, self._timeouts.login, "reply to AUTH")

    def _logged_in(self, reply: Reply) -> None:
        if reply.code < 300:
            self._become_ready()
        else:
            self._refuse(LoginRefused(reply))

    def _become_ready(self) -> None:
        waiting, self._setting_up = self._setting_up, None
        self._rest()
        if waiting is not None:
            self._news.append((waiting, self.offers))

    # Between messages

    def _rest(self) -> None:
        self._deadline.clear()
        self._take = self._unsolicited

    def _unsolicited(self, reply: Reply) -> None:
        """A reply to nothing: 421 is a goodbye (5321 §3.8), and with any other the next one would be taken for what it is not."""
        self._fail(f"the server said, unasked: {reply}")
