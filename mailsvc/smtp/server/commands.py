"""The commands, one function each (5321 §4.1). Each returns its reply or raises Refused. DATA and BDAT: body."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from mailsvc.mail.address import AddressError, Path, parse_path
from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.auth import credentials
from mailsvc.smtp.server.body import data
from mailsvc.smtp.server.extensions import NO_RCPT_PARAMETERS, ehlo_lines, mail_parameters, rcpt_parameters
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.session import Envelope, Login, Recipient
from mailsvc.smtp.server.state import ConversationState

Command = Callable[[ConversationState, bytes], Awaitable[Reply | None]]

UNAUTHENTICATED_RECIPIENTS = 100  # of one mail of a client without a login; 5321 §4.5.3.1.8 requires as many
_CLIENT_NAME = re.compile(rb"[!-~\x80-\xff]{1,255}")


async def ehlo(state: ConversationState, argument: bytes) -> Reply:
    _introduce(state, argument, extended=True)
    listener, session = state.listener, state.session
    lines = ehlo_lines(
        size=listener.limits.size,
        recipients=listener.limits.recipients,
        mails=listener.limits.mails,
        starttls=listener.context is not None and session.tls is None,
        login=listener.login_offered and session.tls is not None,  # 4954 §4: never in clear text
    )
    return Reply(250, "\n".join((listener.host, *lines)))


async def helo(state: ConversationState, argument: bytes) -> Reply:
    _introduce(state, argument, extended=False)
    return Reply(250, state.listener.host)


def _introduce(state: ConversationState, argument: bytes, *, extended: bool) -> None:
    """Accept any name (5321 §4.1.4), and end the mail transaction.

    Programs send the name of their machine, which can have letters such as ü.
    """
    if not _CLIENT_NAME.fullmatch(argument):
        raise Refused(replies.bad_argument("Expected a host name"))
    state.reset()
    state.session.client_name, state.session.extended = argument.decode("ascii", "replace"), extended


async def starttls(state: ConversationState, argument: bytes) -> None:
    if argument:
        raise Refused(replies.NO_ARGUMENT)
    if state.session.tls is not None:
        raise Refused(replies.TLS_TWICE)
    if state.listener.context is None:
        raise Refused(replies.TLS_UNAVAILABLE)
    if len(state.connection.incoming):  # a command injected here would be executed as if it came inside TLS
        raise Hangup(replies.TLS_PIPELINED)
    state.connection.send(replies.READY_FOR_TLS)
    state.restart()
    state.connection.start_tls()


async def auth(state: ConversationState, argument: bytes) -> Reply:
    if not state.listener.login_offered:
        return replies.NOT_IMPLEMENTED
    if state.session.login is not None and not state.session.login.by_address:
        return replies.LOGIN_TWICE
    if state.envelope is not None:
        return replies.LOGIN_IN_MAIL
    given = await credentials(argument, state.challenge)
    answer = await state.policy.authenticate(given.user, given.password)
    if isinstance(answer, Login):
        state.session.login, state.lines.limited = answer, False
        return replies.LOGGED_IN
    return answer


async def mail(state: ConversationState, argument: bytes) -> Reply:
    listener = state.listener
    limits = listener.limits
    if state.envelope is not None:
        return replies.NESTED_MAIL
    if limits.mails is not None and state.session.mails >= limits.mails:
        return replies.TOO_MANY_MAILS
    sender, rest = _path(argument, b"FROM:", "5.1.7")
    parameters = mail_parameters(rest)
    if not (parameters.smtputf8 or argument.isascii()):
        return Reply(553, "This sender address requires SMTPUTF8", "5.6.7")
    if listener.qualified_only and not (sender.qualified or sender.null or sender.literal):
        return Reply(554, "The sender's domain is not fully qualified", "5.1.8")
    if parameters.size is not None and parameters.size > limits.size:  # 1870 §6.1
        return replies.TOO_BIG
    reply = await state.policy.mail(sender, parameters)
    if reply.positive:
        state.envelope = Envelope(sender, parameters)
    return reply


async def rcpt(state: ConversationState, argument: bytes) -> Reply:
    envelope, listener = state.envelope, state.listener
    if envelope is None:
        return replies.MAIL_FIRST
    if state.upload is not None:
        return replies.CHUNKS_BEGUN
    unauthenticated = listener.login_offered and state.session.login is None
    most = min(listener.limits.recipients, UNAUTHENTICATED_RECIPIENTS) if unauthenticated else listener.limits.recipients
    if len(envelope.recipients) >= most:  # 5321 §4.5.3.1.10
        state.excess_recipients += 1
        far_too_many = state.excess_recipients > most
        return replies.FAR_TOO_MANY_RECIPIENTS if far_too_many else replies.TOO_MANY_RECIPIENTS
    state.recipient_refused = True
    path, rest = _path(argument, b"TO:", "5.1.3")
    parameters = rcpt_parameters(rest)
    recipient = Recipient(path, NO_RCPT_PARAMETERS if unauthenticated else parameters)  # they get no notifications
    if path.null:
        return Reply(501, "The recipient address is empty", "5.1.3")
    if not (envelope.parameters.smtputf8 or argument.isascii()):
        return Reply(553, "This recipient address requires SMTPUTF8", "5.6.7")
    if listener.qualified_only and path.domain and not (path.qualified or path.literal):
        return Reply(554, "The recipient's domain is not fully qualified", "5.1.2")
    reply = await state.policy.rcpt(envelope, recipient)
    if reply.positive:
        envelope.recipients.append(recipient)
        state.lines.limited = False
    return reply


def _path(argument: bytes, word: bytes, enhanced: str) -> tuple[Path, bytes]:
    """The path after FROM: or TO:, and what follows it."""
    if argument[: len(word)].upper() != word:
        raise Refused(replies.bad_argument(f"Expected {word.decode('ascii')}<address>"))
    try:
        return parse_path(argument[len(word) :], smtputf8=True)  # the SMTPUTF8 parameter comes after the path
    except AddressError as error:
        raise Refused(Reply(501, str(error), enhanced)) from None


async def rset(state: ConversationState, argument: bytes) -> Reply:
    if argument:
        return replies.NO_ARGUMENT
    state.reset()
    return replies.OK


async def noop(state: ConversationState, argument: bytes) -> Reply:
    return replies.OK


async def vrfy(state: ConversationState, argument: bytes) -> Reply:
    return replies.VERIFY if argument else replies.bad_argument("Expected an address")


async def expn(state: ConversationState, argument: bytes) -> Reply:
    return replies.NOT_IMPLEMENTED


async def show_help(state: ConversationState, argument: bytes) -> Reply:
    return replies.HELP


async def quit_(state: ConversationState, argument: bytes) -> Reply:
    if argument:
        return replies.NO_ARGUMENT
    raise Hangup(replies.BYE)


COMMANDS: dict[bytes, Command] = {
    b"EHLO": ehlo,
    b"HELO": helo,
    b"STARTTLS": starttls,
    b"AUTH": auth,
    b"MAIL": mail,
    b"RCPT": rcpt,
    b"DATA": data,
    b"RSET": rset,
    b"NOOP": noop,
    b"VRFY": vrfy,
    b"EXPN": expn,
    b"HELP": show_help,
    b"QUIT": quit_,
}
