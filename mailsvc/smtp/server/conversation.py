"""The loop of a session: one command, one reply, in order (5321 §4.1, §4.3). The commands: commands, body."""

from __future__ import annotations

import re

import attrs
from twisted.logger import Logger

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.body import bdat
from mailsvc.smtp.server.commands import COMMANDS
from mailsvc.smtp.server.connection import Disconnected, ServerConnection
from mailsvc.smtp.server.framing import COMMAND_LIMIT, Overlong
from mailsvc.smtp.server.lines import LineReader
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.session import Listener, Login, Session, SessionPolicy
from mailsvc.smtp.server.state import ConversationState

log = Logger()

_MECHANISM = re.compile(rb"[A-Za-z0-9_-]{1,20}")  # longer than this, or with other characters, it may be credentials
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_HTTP = frozenset({b"GET", b"POST", b"PUT", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI"})
_MAIL = frozenset({b"MAIL", b"RCPT", b"DATA", b"BDAT"})
_BEFORE_TLS = frozenset({b"NOOP", b"EHLO", b"STARTTLS", b"QUIT"})  # 3207 §4
_BEFORE_LOGIN = frozenset({b"AUTH", b"EHLO", b"HELO", b"NOOP", b"RSET", b"QUIT", b"STARTTLS"})  # 4954 §6
_AFTER_HELLO = _MAIL | {b"AUTH"}


@attrs.define(eq=False)
class Conversation:
    """One session. A command is read only after the previous one was answered."""

    connection: ServerConnection
    listener: Listener
    session: Session
    policy: SessionPolicy
    _state: ConversationState = attrs.field(init=False)
    _errors: int = 0
    _failed_logins: int = 0

    async def run(self) -> None:
        """Conduct the whole session, then close the connection."""
        abort = False
        connection, listener = self.connection, self.listener
        limited = not (self.session.trusted_network and listener.login_required)
        lines = LineReader(connection, listener.limits, limited, connection.clock.seconds())
        self._state = ConversationState(connection, listener, self.session, self.policy, lines)
        try:
            connection.send(Reply(220, f"{listener.host} ESMTP"))
            while True:
                await self._turn()
        except Hangup as end:
            abort = end.abort
            if end.reply is not None:
                connection.send(end.reply)
        except Disconnected:
            pass
        except Exception:
            log.failure("an SMTP session failed")
            connection.send(replies.BROKEN)
        finally:
            connection.close(abort=abort)
            self._state.reset()
            self.policy.closed()

    async def _turn(self) -> None:
        state = self._state
        line = await state.lines.line(COMMAND_LIMIT)
        state.commands += 1
        verb = b""
        if isinstance(line, Overlong):
            state.transcribe(b"(a line that is too long)")
            reply: Reply | None = replies.TOO_LONG
        else:
            verb, _, argument = line.partition(b" ")
            verb = verb.upper()
            state.transcribe(_without_secrets(verb, line))
            if self.session.closing and self.session.mails and verb != b"QUIT":
                raise Hangup(replies.SHUTDOWN)
            reply = await self._answer(verb, argument.strip(b" "), line)
        if reply is not None:
            error = self._is_error(verb, reply)
            if error and (self._errors >= self.listener.limits.errors // 2 or verb == b"AUTH"):
                await self._tarpit()
            self.connection.send(reply)
            self._check_limits(verb, reply, error)

    async def _tarpit(self) -> None:
        """Slow down clients that guess passwords or send errors only."""
        if self.listener.limits.tarpit:
            await self.connection.delay(self.listener.limits.tarpit)

    async def _answer(self, verb: bytes, argument: bytes, line: bytes) -> Reply | None:
        state = self._state
        command = COMMANDS.get(verb)
        if command is None and verb != b"BDAT":
            if verb in _HTTP and state.commands == 1:
                raise Hangup(None, abort=True)
            return replies.UNKNOWN
        refusal = replies.CONTROL_CHARACTERS if _CONTROL.search(line) else self._out_of_order(verb)
        if refusal is not None and self.session.trusted_network and refusal.code == 530:
            refusal = await self._login_by_address(verb, refusal)
        try:
            if command is None:  # the chunk follows whether BDAT is refused or not
                return await bdat(state, argument, refusal)
            return refusal or await command(state, argument)
        except Refused as refused:
            return refused.reply
        except (Hangup, Disconnected):
            raise
        except Exception:
            log.failure("{verb} failed", verb=verb.decode("ascii"))
            state.reset()
            return replies.INTERNAL

    async def _login_by_address(self, verb: bytes, refusal: Reply) -> Reply | None:
        """A client in a trusted network needs neither TLS nor AUTH, but may use both (6409 §4.3)."""
        answer = await self.policy.login_by_address()
        if not isinstance(answer, Login):
            return answer or refusal
        self.session.login = answer
        return self._out_of_order(verb)

    def _out_of_order(self, verb: bytes) -> Reply | None:
        """What the listener requires before this command, in the order in which a client has to do it."""
        session, listener = self.session, self.listener
        if verb == b"AUTH" and session.tls is None and listener.login_offered:
            return replies.LOGIN_NEEDS_TLS
        if listener.tls_required and session.tls is None and session.login is None and verb not in _BEFORE_TLS:
            return replies.TLS_FIRST
        if session.client_name is None and verb in _AFTER_HELLO:
            return replies.HELLO_FIRST
        if listener.login_required and session.login is None and verb not in _BEFORE_LOGIN:
            return replies.LOGIN_FIRST
        return None

    def _is_error(self, verb: bytes, reply: Reply) -> bool:
        """The refused mails of an authenticated client are not errors."""
        return reply.permanent and not (self.session.login is not None and verb in _MAIL)

    def _check_limits(self, verb: bytes, reply: Reply, error: bool) -> None:
        """Close the connection of a client that makes too many errors, or sends no mail."""
        limits, state = self.listener.limits, self._state
        if reply.code == 421:
            raise Hangup(None)
        if verb == b"AUTH" and reply.code in (525, 535):
            self._failed_logins += 1
        if error:
            self._errors += 1
        if verb not in _MAIL:
            state.non_mail_commands += 1
        if self._failed_logins >= limits.logins:
            raise Hangup(replies.TOO_MANY_LOGINS)
        if self._errors >= limits.errors:
            raise Hangup(replies.TOO_MANY_ERRORS)
        if state.non_mail_commands >= limits.non_mail_commands:
            raise Hangup(replies.TOO_MANY_COMMANDS)


def _without_secrets(verb: bytes, line: bytes) -> bytes:
    """The command as the transcript shows it. An unknown command may be a password that was sent at the wrong time."""
    if verb == b"AUTH":
        command, *words = line.split(b" ")
        return b" ".join([command, *filter(_MECHANISM.fullmatch, words[:1])])
    return line if verb in COMMANDS or verb == b"BDAT" else b"(an unknown command)"
