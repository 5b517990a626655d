"""The dialogue of a receiving session: one command, one reply, in order (5321 §4.1, §4.3). The verbs: commands, transfer."""

from __future__ import annotations

import re

import attrs
from twisted.logger import Logger

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.body import Upload, bdat
from mailsvc.smtp.server.commands import COMMANDS
from mailsvc.smtp.server.framing import COMMAND_LIMIT, RESPONSE_LIMIT, Overlong
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.session import Envelope, Listener, Login, Reception, Session
from mailsvc.smtp.server.transport import Gone, Late, Transport

log = Logger()

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_HTTP = frozenset({b"GET", b"POST", b"PUT", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI"})
_MAIL = frozenset({b"MAIL", b"RCPT", b"DATA", b"BDAT"})
_BEFORE_TLS = frozenset({b"NOOP", b"EHLO", b"STARTTLS", b"QUIT"})  # 3207 §4
_BEFORE_LOGIN = frozenset({b"AUTH", b"EHLO", b"HELO", b"NOOP", b"RSET", b"QUIT", b"STARTTLS"})  # 4954 §6
_AFTER_HELLO = _MAIL | {b"AUTH"}


@attrs.define(eq=False)
class Conversation:
    """One session. A command is taken only when the one before it has been answered."""

    wire: Transport
    listener: Listener
    session: Session
    reception: Reception
    envelope: Envelope | None = None
    upload: Upload | None = None  # a body that is under way
    refused: bool = False  # some recipient of the envelope was
    overshoot: int = 0  # recipients of the envelope that were too many
    trusted: bool = False  # logged in, or had a recipient accepted; or need not log in
    _commands: int = 0
    _errors: int = 0
    _chatter: int = 0  # commands since the last mail that did not help one along
    _failed_logins: int = 0
    _octets: int = 0  # of commands, as a stranger
    _opened: float = 0.0

    async def run(self) -> None:
        """The whole session; at its end the connection is closed."""
        abort = False
        self._opened = self.wire.clock.seconds()
        self.trusted = self.session.neighbour and self.listener.login_required
        try:
            self.wire.send(Reply(220, f"{self.listener.host} ESMTP"))
            while True:
                await self._turn()
        except Hangup as end:
            abort = end.abort
            if end.reply is not None:
                self.wire.send(end.reply)
        except Gone:
            pass
        except Exception:
            log.failure("a conversation broke off")
            self.wire.send(replies.BROKEN)
        finally:
            self.wire.finish(abort=abort)
            self.reset()
            self.reception.dropped()

    def reset(self) -> None:
        """The mail transaction is over, whatever became of it."""
        if self.upload is not None:
            self.upload.drop()
        self.envelope, self.upload, self.refused, self.overshoot = None, None, False, 0

    def forget(self) -> None:
        """After the TLS handshake nothing counts that was said before it (3207 §4.2)."""
        self.reset()
        self.session.forget()
        self._commands = 0

    def accepted(self) -> None:
        """A mail was taken."""
        self.session.mails += 1
        self._chatter = 0

    def note(self, text: bytes) -> None:
        if self.session.transcript is not None:
            self.session.transcript.client(text)

    async def response(self, challenge: Reply) -> bytes:
        """The client's line after a challenge in the middle of AUTH."""
        self.wire.send(challenge)
        line = await self._line(RESPONSE_LIMIT)
        self.note(b"(response)")
        if isinstance(line, Overlong):
            raise Refused(replies.LOGIN_TOO_LONG)
        return line

    async def _line(self, limit: int) -> bytes | Overlong:
        """The next line, complete within the time that a request has."""
        if self.wire.tired():
            await self.wire.rest()
        until = 0.0
        while True:
            line = self.wire.inbox.line(limit) if self.wire.ready else None
            if limit == COMMAND_LIMIT and not self.trusted:
                self._spend(line)
            if line is not None:
                return line
            until = until or self._deadline()
            try:
                await self.wire.more(until)
            except Late:
                raise Hangup(replies.IDLE) from None

    def _deadline(self) -> float:
        limits = self.listener.limits
        until = self.wire.clock.seconds() + limits.idle
        if self.trusted or limits.stranger_seconds is None:
            return until
        return min(until, self._opened + limits.stranger_seconds)

    def _spend(self, line: bytes | Overlong | None) -> None:
        """A stranger has so many octets for its commands, an unfinished one included."""
        pending = self.wire.inbox.swallowed if line is None else 0
        if isinstance(line, Overlong):
            self._octets += line.octets
        elif line is not None:
            self._octets += len(line) + 2
        most = self.listener.limits.stranger_octets
        if most is not None and self._octets + pending > most:
            raise Hangup(replies.TOO_MUCH_TALK)

    async def _turn(self) -> None:
        line = await self._line(COMMAND_LIMIT)
        self._commands += 1
        verb = b""
        if isinstance(line, Overlong):
            self.note(b"(an over-long line)")
            reply: Reply | None = replies.TOO_LONG
        else:
            verb, _, argument = line.partition(b" ")
            verb = verb.upper()
            self.note(_fit_to_show(verb, line))
            if self.session.leaving and self.session.mails and verb != b"QUIT":
                raise Hangup(replies.SHUTDOWN)
            reply = await self._answer(verb, argument.strip(b" "), line)
        if reply is not None:
            error = self._is_error(verb, reply)
            if error and (self._errors >= self.listener.limits.errors // 2 or verb == b"AUTH"):
                await self._tarpit()
            self.wire.send(reply)
            self._judge(verb, reply, error)

    async def _tarpit(self) -> None:
        """Who guesses or floods gets no more than an answer a second."""
        if self.listener.limits.tarpit:
            await self.wire.pause(self.listener.limits.tarpit)

    async def _answer(self, verb: bytes, argument: bytes, line: bytes) -> Reply | None:
        command = COMMANDS.get(verb)
        if command is None and verb != b"BDAT":
            if verb in _HTTP and self._commands == 1:
                raise Hangup(None, abort=True)
            return replies.UNKNOWN
        refusal = replies.UNCLEAN if _CONTROL.search(line) else self._out_of_order(verb)
        if refusal is not None and self.session.neighbour and refusal.code == 530:
            refusal = await self._vouched(verb, refusal)
        try:
            if command is None:  # the octets of a chunk follow whether it is refused or not
                return await bdat(self, argument, refusal)
            return refusal or await command(self, argument)
        except Refused as refused:
            return refused.reply
        except (Hangup, Gone):
            raise
        except Exception:
            log.failure("{verb} failed", verb=verb.decode("ascii"))
            self.reset()
            return replies.INTERNAL

    async def _vouched(self, verb: bytes, refusal: Reply) -> Reply | None:
        """Whose address is enough needs neither TLS nor AUTH, and may have both (6409 §4.3)."""
        answer = await self.reception.vouched()
        if not isinstance(answer, Login):
            return answer or refusal
        self.session.login = answer
        return self._out_of_order(verb)

    def _out_of_order(self, verb: bytes) -> Reply | None:
        """What a port demands before a command, told in the order in which a client has to do it."""
        session, listener = self.session, self.listener
        if verb == b"AUTH" and session.tls is None and listener.login_offered:
            return replies.LOGIN_NEEDS_TLS
        if listener.tls_required and session.tls is None and session.login is None and verb not in _BEFORE_TLS:
            return replies.TLS_FIRST
        if session.hello is None and verb in _AFTER_HELLO:
            return replies.HELLO_FIRST
        if listener.login_required and session.login is None and verb not in _BEFORE_LOGIN:
            return replies.LOGIN_FIRST
        return None

    def _is_error(self, verb: bytes, reply: Reply) -> bool:
        return reply.permanent and not (self.session.login is not None and verb in _MAIL)

    def _judge(self, verb: bytes, reply: Reply, error: bool) -> None:
        """A client that only makes errors, or only talks, is sent away. A customer's bad recipients are no errors."""
        limits = self.listener.limits
        if reply.code == 421:
            raise Hangup(None)
        if verb == b"AUTH" and reply.code in (525, 535):
            self._failed_logins += 1
        if error:
            self._errors += 1
        if verb not in _MAIL:
            self._chatter += 1
        if self._failed_logins >= limits.logins:
            raise Hangup(replies.TOO_MANY_LOGINS)
        if self._errors >= limits.errors:
            raise Hangup(replies.TOO_MANY_ERRORS)
        if self._chatter >= limits.chatter:
            raise Hangup(replies.TOO_MUCH_TALK)


def _fit_to_show(verb: bytes, line: bytes) -> bytes:
    """A command without its secrets. What is no command may be a password that came at the wrong time."""
    if verb == b"AUTH":
        return b" ".join(line.split(b" ")[:2])
    return line if verb in COMMANDS or verb == b"BDAT" else b"(an unknown command)"
