"""The SMTP client: one connection that carries message after message (RFC 5321 §3.3, 2920).

    courier = Courier(reactor, "mta1.example.net", host="mx.example.org")
    await connectProtocol(endpoint, courier)
    await courier.ready
    result = await courier.deliver(envelope, pieces, may_send_dot)
    await courier.quit()

Which host, how many connections, what a reply means and when to try again: delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.deadlines import Timeouts
from mailsvc.smtp.client.dot_stuffing import SLICE, BareLineEnd, Chunk, Coding, DotStuffer
from mailsvc.smtp.client.envelope import BadAddress, Envelope
from mailsvc.smtp.client.handshake import Canceled, GreetingRefused, Handshake, Login, LoginRefused, Lost, NotReady, TlsFailed, TlsPolicy
from mailsvc.smtp.client.message_writer import MessageWriter
from mailsvc.smtp.client.plan import MALFORMED, Manner, lay_out
from mailsvc.smtp.client.transaction import Result, Stage, Step, Transaction
from mailsvc.smtp.client.transcript import ClientTranscript
from mailsvc.smtp.client.write_guard import WriteGuard

__all__ = [
    "BadAddress",
    "Canceled",
    "Capabilities",
    "Envelope",
    "GreetingRefused",
    "Login",
    "LoginRefused",
    "Lost",
    "NotReady",
    "Result",
    "SmtpClient",
    "Stage",
    "Timeouts",
    "TlsFailed",
    "TlsPolicy",
]

_PHASES = {"mail": "reply to MAIL", "rcpt": "reply to RCPT", "data": "reply to DATA", "dot": "reply to the message"}
_AWAKE = 10.0  # seconds for which a server that said something is taken to be there still


class SmtpClient(Handshake):
    """Delivers one message at a time. Every Result of `deliver` arrives as a value, also those of lost connections."""

    _transaction: Transaction | None = None
    _waiting: Deferred[Result] | None = None
    _outflow: MessageWriter | None = None
    _leaving = False
    _reset_first = False
    _began = 0.0
    _moved_octets = 0
    transactions = 0  # how many have been started on this connection

    def connectionMade(self) -> None:
        self._fence = WriteGuard()
        self._fence.stand_before(self.transport)
        super().connectionMade()

    @property
    def usable(self) -> bool:
        """Whether another message may be given to it now."""
        return (
            self._open
            and self.offers is not None
            and self._setting_up is None
            and self._transaction is None
            and not self._leaving
            and not self._answers.pending
            and not 0 < self.offers.mail_max <= self.transactions
        )

    def deliver(
        self, envelope: Envelope, pieces: Iterable[bytes], may_send_dot: Callable[[], bool] = lambda: True, manner: Manner = "data"
    ) -> Deferred[Result]:
        """Send the message in `pieces` (strict CRLF) to the recipients of `envelope`.

        `may_send_dot` is asked right before the end of the message is written, and again before the system is given it; without
        its yes the server gets no complete message. `manner` is the boldest that may be used: BDAT (3030) if the server offers that
        with pipelining and the size of the message is known. Fails only with what `pieces` or `may_send_dot` raise.
        """
        if self._transaction is not None or self._setting_up is not None:
            raise RuntimeError("not ready, or busy with another message")
        offers = self.offers or Capabilities()
        chunked = manner != "data" and offers.chunking and offers.pipelining and envelope.size > 0
        plan = lay_out(envelope, offers, chunked=chunked)
        transaction = Transaction(
            plan,
            len(envelope.recipients),
            pipelining=offers.pipelining,
            reset=self._reset_first,
            reused=self.transactions > 0,
            chunked=chunked,
            prompt=manner == "together" and self._prompt(envelope),
        )
        if not plan.tried:
            return succeed(transaction.result(""))
        if not self.usable:
            transaction.lost = self._ended or "the connection is not usable any more"
            said = f"* {transaction.lost}" if self.transactions else str(self._dialogue)  # never what was said of another mail
            return succeed(attrs.evolve(transaction.result(said), stale=True))
        self._transaction = transaction
        waiting: Deferred[Result] = Deferred(self._canceled)
        self._waiting = waiting
        self._pieces, self._size = pieces, envelope.size
        self._may_send_dot = may_send_dot
        self._began = self._clock.seconds()
        self.transactions += 1
        if self.transactions > 1:
            self._dialogue = ClientTranscript(self._began, self._dialogue.wanted)
            self._dialogue.note(f"message {self.transactions} on this connection")
        self._send_commands(transaction)
        return waiting

    def quit(self) -> Deferred[None]:
        """Say goodbye and close, at most `timeouts.quit` seconds later; fires when the connection is gone."""
        closed = self.when_closed()
        if self._open and not self._leaving:
            if self._setting_up is not None or self._transaction is not None:
                self.abort("given up")
            else:
                self._leaving = True
                self._say(b"QUIT")
                self._take = self._goodbye
                self._deadline.set(self._clock.seconds() + self._timeouts.quit, "reply to QUIT")
        return closed

    def give_up(self, reason: str) -> None:
        """End it, unless the server has a whole message and its answer is all that is waited for."""
        if self._transaction is None or not self._transaction.sent_dot:
            self.abort(reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._leaving:
            self._open = False  # as agreed
        super().connectionLost(reason)

    # Commands

    def _send_commands(self, transaction: Transaction) -> None:
        commands = transaction.next_commands()
        self._dialogue.client(commands)
        if transaction.message_next:
            self._send_message(transaction, commands)
            return
        self._await_command(transaction)
        self.transport.write(commands)

    def _prompt(self, envelope: Envelope) -> bool:
        """Whether a message may go along with its commands: it costs little, and the server is there and remembers no other."""
        return envelope.size <= SLICE and not self._reset_first and self._clock.seconds() - self._heard < _AWAKE

    def _await_command(self, transaction: Transaction) -> None:
        stage = transaction.stage
        if stage == "dot":
            self._await_verdict(self._command_reply)
        else:
            self._await(self._command_reply, getattr(self._timeouts, stage), _PHASES[stage])

    def _await_verdict(self, take: Callable[[Reply], None]) -> None:
        self._take = take
        self._deadline.set(self._clock.seconds() + self._timeouts.dot, "reply to the message")

    def _await(self, take: Callable[[Reply], None], seconds: float, what: str) -> None:
        self._take = take
        now = self._clock.seconds()
        self._deadline.set(min(now + seconds, self._began + self._timeouts.message), what)

    def _command_reply(self, reply: Reply) -> None:
        transaction = self._current()
        if self._fence.holding and reply.positive and transaction.stage == "dot":
            step = transaction.early(reply)
        else:
            step = transaction.take(reply)
        if step is Step.WAIT:
            if not self._answers.pending:
                self._await_command(transaction)
        elif step is Step.DONE or step is Step.STOP:
            self._finish(transaction, step)
        elif self._answers.pending:
            self._hear_out(step)
        elif step is Step.SEND:
            self._send_commands(transaction)
        elif step is Step.BODY:
            self._send_message(transaction)
        else:
            self._say(b".")
            self._await(self._void_reply, self._timeouts.dot, "reply to an empty message")

    def _hear_out(self, step: Step) -> None:
        """Octets are here that the server sent before it was given what is next: see what they say before anything is written."""

        def take(reply: Reply) -> None:
            transaction = self._current()
            then = transaction.early(reply) if step is Step.BODY else transaction.ahead(reply)
            if then is not Step.WAIT:
                self._finish(transaction, then)
            elif not self._answers.pending:
                self._send_message(transaction)

        self._await(take, self._timeouts.block, "the rest of a reply that was not asked for")

    # The message

    def _send_message(self, transaction: Transaction, head: bytes = b"") -> None:
        """The message, behind the commands in `head`."""
        coding = Chunk(self._size) if transaction.chunked else DotStuffer()
        if 0 < self._size <= SLICE:
            self._send_at_once(head, coding)
            return
        self._moved_octets = 0
        self._body_began = self._clock.seconds()
        self._await(self._early_reply, self._timeouts.block, "the server to read the message")
        self._outflow = MessageWriter(self.transport, head, self._pieces, coding, self._may_end, self._moved, self._message_failed)
        self._outflow.start()

    def _send_at_once(self, head: bytes, coding: Coding) -> None:
        """A message of one slice, which waits for nobody to read it."""
        try:
            octets = head + coding.feed(b"".join(self._pieces)) + coding.end()
            if self._may_end():
                self.transport.write(octets)
        except Exception as error:
            self._message_failed(error)

    def _moved(self, octets: int) -> None:
        """A slice was written: the next one may be, within the time of a block, and at no less than the least rate overall."""
        self._moved_octets += octets
        overall = self._body_began + self._timeouts.block + self._moved_octets / self._timeouts.rate - self._clock.seconds()
        self._await(self._early_reply, min(self._timeouts.block, overall), "the server to read the message")

    def _may_end(self) -> bool:
        transaction = self._current()
        if not self._may_send_dot():
            self._fail("withheld: the end of the message was not allowed")
            self._tell()
            return False
        transaction.sent_dot = True
        self._fence.ask(self._may_send_dot)
        self._dialogue.client(b"(message)" if transaction.chunked else b"(message and final dot)")
        if transaction.chunked:
            self._await_command(transaction)
        else:
            self._await_verdict(self._final_reply)
        return True

    def _message_failed(self, error: Exception) -> None:
        transaction = self._current()
        if isinstance(error, BareLineEnd):
            transaction.refuse(MALFORMED)
        elif self._waiting is not None:
            self._news.append((self._waiting, error))
            self._waiting = None
        self._fail(f"the message could not be sent: {error}")
        self._tell()

    def _early_reply(self, reply: Reply) -> None:
        transaction = self._current()
        step = transaction.early(reply)
        if step is not Step.WAIT:
            self._finish(transaction, step)

    def _final_reply(self, reply: Reply) -> None:
        transaction = self._current()
        step = transaction.early(reply) if self._fence.holding and reply.positive else transaction.take_final(reply)
        if step is not Step.WAIT:
            self._finish(transaction, step)

    def _void_reply(self, reply: Reply) -> None:
        transaction = self._current()
        self._finish(transaction, transaction.take_void(reply))

    # The end

    def _current(self) -> Transaction:
        assert self._transaction is not None
        return self._transaction

    def _finish(self, transaction: Transaction, step: Step) -> None:
        if step is Step.STOP:
            self._close()
        else:
            self._rest()
        self._settle(transaction)

    def _failed(self, reason: str) -> None:
        transaction = self._transaction
        if transaction is None:
            return
        begun = self._answers.begun()
        if begun is None:
            transaction.lose(reason)
        else:
            transaction.cut_short(begun.reply, reason)
        self._settle(transaction)

    def _expired(self, what: str) -> None:
        if self._transaction is not None and self._take == self._command_reply:
            what = _PHASES[self._transaction.stage]  # while replies come in parts, the deadline keeps the name of the first
        super()._expired(what)

    def _settle(self, transaction: Transaction) -> None:
        self._transaction = None
        self._reset_first = transaction.needs_reset
        if self._outflow is not None:
            self._outflow.stop()
            self._outflow = None
        self._pieces = ()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._news.append((waiting, transaction.result(str(self._dialogue))))

    def _goodbye(self, _reply: Reply) -> None:
        self.transport.loseConnection()
