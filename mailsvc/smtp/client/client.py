"""The SMTP client: one connection that sends message after message (RFC 5321 §3.3, 2920).

    client = SmtpClient(reactor, "mta1.example.net", host="mx.example.org")
    await connectProtocol(endpoint, client)
    await client.ready
    result = await client.deliver(envelope, pieces, may_send_dot)
    await client.quit()

Which host, how many connections, what a reply means and when to retry is decided in delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from mailsvc.mail.reply import Reply
from mailsvc.net.writing import write
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.deadlines import Timeouts
from mailsvc.smtp.client.dot_stuffing import SLICE, BareLineEnd, BdatCoding, Coding, DotStuffer
from mailsvc.smtp.client.envelope import BadAddress, Envelope
from mailsvc.smtp.client.handshake import Canceled, GreetingRefused, Handshake, Login, LoginRefused, Lost, NotReady, TlsFailed, TlsPolicy
from mailsvc.smtp.client.message_writer import MessageWriter
from mailsvc.smtp.client.plan import MALFORMED, SendMode, lay_out
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
_RECENT = 10.0  # seconds; a server that sent something within them is assumed to be alive


class SmtpClient(Handshake):
    """Delivers one message at a time. `deliver` returns a Result also when the connection is lost."""

    _transaction: Transaction | None = None
    _result: Deferred[Result] | None = None
    _writer: MessageWriter | None = None
    _quitting = False
    _reset_first = False
    _started_at = 0.0
    _written_bytes = 0
    transactions = 0  # started on this connection

    def connectionMade(self) -> None:
        self._write_guard = WriteGuard()
        self._write_guard.attach(self.transport)
        super().connectionMade()

    @property
    def usable(self) -> bool:
        """Whether another message can be delivered now."""
        return (
            self._open
            and self.capabilities is not None
            and self._awaiting_ready is None
            and self._transaction is None
            and not self._quitting
            and not self._replies.pending
            and not 0 < self.capabilities.mail_max <= self.transactions
        )

    def deliver(
        self, envelope: Envelope, pieces: Iterable[bytes], may_send_dot: Callable[[], bool] = lambda: True, mode: SendMode = "data"
    ) -> Deferred[Result]:
        """Send the message in `pieces` (strict CRLF) to the recipients of `envelope`.

        `may_send_dot` is called before the end of the message is written, and again before those bytes reach the socket; if it returns
        False, the server never gets a complete message. `mode` is the fastest mode to use: BDAT (3030) requires that the server
        announces it together with PIPELINING, and that the size is known; DATA uses PIPELINING if the server announces it. Raises only
        what `pieces` or `may_send_dot` raise.
        """
        if self._transaction is not None or self._awaiting_ready is not None:
            raise RuntimeError("the connection is not ready, or is sending another message")
        capabilities = self.capabilities or Capabilities()
        chunked = mode in ("bdat", "together") and capabilities.chunking and capabilities.pipelining and envelope.size > 0
        plan = lay_out(envelope, capabilities, chunked=chunked)
        transaction = Transaction(
            plan,
            len(envelope.recipients),
            pipelining=capabilities.pipelining and mode != "single",
            reset=self._reset_first,
            reused=self.transactions > 0,
            chunked=chunked,
            at_once=mode == "together" and self._can_send_at_once(envelope),
        )
        if not plan.tried:
            return succeed(transaction.result(""))
        if not self.usable:
            transaction.lost = self._ended or "the connection can no longer be used"
            transcript = f"* {transaction.lost}" if self.transactions else str(self._transcript)  # never that of another mail
            return succeed(attrs.evolve(transaction.result(transcript), stale=True))
        self._transaction = transaction
        result: Deferred[Result] = Deferred(self._canceled)
        self._result = result
        self._pieces, self._size = pieces, envelope.size
        self._may_send_dot = may_send_dot
        self._started_at = self._clock.seconds()
        self.transactions += 1
        if self.transactions > 1:
            self._transcript = ClientTranscript(self._started_at, self._transcript.wanted)
            self._transcript.note(f"message {self.transactions} on this connection")
        self._send_commands(transaction)
        return result

    def leave_out_parameters(self) -> None:
        """Send no optional parameters from now on."""
        if self.capabilities is not None:
            self.capabilities = self.capabilities.without_parameters()

    def quit(self) -> Deferred[None]:
        """Send QUIT and close the connection, after at most `timeouts.quit` seconds. Fires when the connection is closed."""
        closed = self.when_closed()
        if self._open and not self._quitting:
            if self._awaiting_ready is not None or self._transaction is not None:
                self.abort("given up")
            else:
                self._quitting = True
                self._send_line(b"QUIT")
                self._on_reply = self._quit_reply
                self._deadline.set(self._clock.seconds() + self._timeouts.quit, "reply to QUIT")
        return closed

    def give_up(self, reason: str) -> None:
        """Close the connection, unless the server has a complete message and only its reply is missing."""
        if self._transaction is None or not self._transaction.sent_dot:
            self.abort(reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._quitting:
            self._open = False  # expected
        super().connectionLost(reason)

    # Commands

    def _send_commands(self, transaction: Transaction) -> None:
        commands = transaction.next_commands()
        self._transcript.client(commands)
        if transaction.message_next:
            self._send_message(transaction, commands)
            return
        self._expect_command_reply(transaction)
        write(self.transport, commands)

    def _can_send_at_once(self, envelope: Envelope) -> bool:
        """Whether to send the message with its commands: it is small, and the server is alive and has no unfinished transaction."""
        return envelope.size <= SLICE and not self._reset_first and self._clock.seconds() - self._last_data_at < _RECENT

    def _expect_command_reply(self, transaction: Transaction) -> None:
        stage = transaction.stage
        if stage == "dot" or transaction.sent_dot:  # a server may hold its replies back until it has dealt with the message (2920 §3.2)
            self._expect_final_reply(self._command_reply)
            return
        seconds: float = getattr(self._timeouts, stage)
        if transaction.unanswered:
            seconds = min(seconds, self._timeouts.reused)
        self._expect_in_transaction(self._command_reply, seconds, _PHASES[stage])

    def _expect_final_reply(self, on_reply: Callable[[Reply], None]) -> None:
        self._on_reply = on_reply
        self._deadline.set(self._clock.seconds() + self._timeouts.dot, "reply to the message")

    def _expect_in_transaction(self, on_reply: Callable[[Reply], None], seconds: float, what: str) -> None:
        self._on_reply = on_reply
        now = self._clock.seconds()
        self._deadline.set(min(now + seconds, self._started_at + self._timeouts.message), what)

    def _command_reply(self, reply: Reply) -> None:
        transaction = self._current()
        if self._write_guard.pending and reply.positive and transaction.stage == "dot":
            step = transaction.on_early_reply(reply)
        else:
            step = transaction.on_reply(reply)
        if step is Step.WAIT:
            if not self._replies.pending:
                self._expect_command_reply(transaction)
        elif step is Step.DONE or step is Step.STOP:
            self._finish(transaction, step)
        elif self._replies.pending:
            self._read_early_replies(step)
        elif step is Step.SEND:
            self._send_commands(transaction)
        elif step is Step.BODY:
            self._send_message(transaction)
        else:
            self._send_line(b".")
            self._expect_in_transaction(self._empty_message_reply, self._timeouts.dot, "reply to an empty message")

    def _read_early_replies(self, step: Step) -> None:
        """The server sent data before the next command was written: read the reply before writing anything."""

        def on_reply(reply: Reply) -> None:
            transaction = self._current()
            then = transaction.on_early_reply(reply) if step is Step.BODY else transaction.on_unasked_reply(reply)
            if then is not Step.WAIT:
                self._finish(transaction, then)
            elif not self._replies.pending:
                self._send_message(transaction)

        self._expect_in_transaction(on_reply, self._timeouts.block, "the rest of an unexpected reply")

    # The message

    def _send_message(self, transaction: Transaction, head: bytes = b"") -> None:
        """Send the message after the commands in `head`."""
        coding = BdatCoding(self._size) if transaction.chunked else DotStuffer()
        if 0 < self._size <= SLICE:
            self._send_at_once(head, coding)
            return
        self._written_bytes = 0
        self._message_started_at = self._clock.seconds()
        self._expect_in_transaction(self._early_reply, self._timeouts.block, "the server to read the message")
        self._writer = MessageWriter(self.transport, head, self._pieces, coding, self._may_end, self._slice_written, self._message_failed)
        self._writer.start()

    def _send_at_once(self, head: bytes, coding: Coding) -> None:
        """Send a message of one slice, without flow control."""
        try:
            data = head + coding.feed(b"".join(self._pieces)) + coding.end()
            if self._may_end():
                write(self.transport, data)
        except Exception as error:
            self._message_failed(error)

    def _slice_written(self, size: int) -> None:
        """Set the deadline for the next slice: the timeout for a block, and the minimum rate for the whole message."""
        self._written_bytes += size
        overall = self._message_started_at + self._timeouts.block + self._written_bytes / self._timeouts.rate - self._clock.seconds()
        self._expect_in_transaction(self._early_reply, min(self._timeouts.block, overall), "the server to read the message")

    def _may_end(self) -> bool:
        transaction = self._current()
        if not self._may_send_dot():
            self._fail("the message was withheld before its end")
            self._fire_results()
            return False
        transaction.sent_dot = True
        self._write_guard.require(self._may_send_dot)
        self._transcript.client(b"(message)" if transaction.chunked else b"(message and final dot)")
        if transaction.chunked:
            self._expect_command_reply(transaction)
        else:
            self._expect_final_reply(self._final_reply)
        return True

    def _message_failed(self, error: Exception) -> None:
        transaction = self._current()
        if isinstance(error, BareLineEnd):
            transaction.refuse(MALFORMED)
        elif self._result is not None:
            self._results.append((self._result, error))
            self._result = None
        self._fail(f"the message could not be sent: {error}")
        self._fire_results()

    def _early_reply(self, reply: Reply) -> None:
        transaction = self._current()
        step = transaction.on_early_reply(reply)
        if step is not Step.WAIT:
            self._finish(transaction, step)

    def _final_reply(self, reply: Reply) -> None:
        transaction = self._current()
        step = transaction.on_early_reply(reply) if self._write_guard.pending and reply.positive else transaction.on_final_reply(reply)
        if step is not Step.WAIT:
            self._finish(transaction, step)

    def _empty_message_reply(self, reply: Reply) -> None:
        transaction = self._current()
        self._finish(transaction, transaction.on_empty_reply(reply))

    # The end

    def _current(self) -> Transaction:
        assert self._transaction is not None
        return self._transaction

    def _finish(self, transaction: Transaction, step: Step) -> None:
        if step is Step.STOP:
            self._close()
        else:
            self._idle()
        self._settle(transaction)

    def _failed(self, reason: str) -> None:
        transaction = self._transaction
        if transaction is None:
            return
        begun = self._replies.begun()
        if begun is None:
            transaction.break_off(reason)
        else:
            transaction.cut_short(begun.reply, reason)
        self._settle(transaction)

    def _expired(self, what: str) -> None:
        if self._transaction is not None and self._on_reply == self._command_reply:
            what = _PHASES[self._transaction.stage]  # the deadline was set for the first of several replies
            self._transaction.timed_out = True
        super()._expired(what)

    def _settle(self, transaction: Transaction) -> None:
        self._transaction = None
        self._reset_first = transaction.needs_reset
        if self._writer is not None:
            self._writer.stop()
            self._writer = None
        self._pieces = ()
        result, self._result = self._result, None
        if result is not None:
            self._results.append((result, transaction.result(str(self._transcript))))

    def _quit_reply(self, _reply: Reply) -> None:
        self.transport.loseConnection()
