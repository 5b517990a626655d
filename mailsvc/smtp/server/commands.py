"""The verbs, one small function each (5321 §4.1). Bodies: transfer. Each returns its reply, or raises Refused."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mailsvc.mail.address import AddressError, Path, parse_path
from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.auth import credentials
from mailsvc.smtp.server.body import data
from mailsvc.smtp.server.extensions import mail_parameters, offers, rcpt_parameters
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.session import Envelope, Login, Recipient

if TYPE_CHECKING:
    from mailsvc.smtp.server.conversation import Conversation

Command = Callable[["Conversation", bytes], Awaitable[Reply | None]]

_HELLO = re.compile(rb"[!-~]{1,255}")


async def ehlo(talk: Conversation, argument: bytes) -> Reply:
    _introduce(talk, argument, extended=True)
    listener, session = talk.listener, talk.session
    lines = offers(
        size=listener.limits.size,
        recipients=listener.limits.recipients,
        mails=listener.limits.mails,
        starttls=listener.context is not None and session.tls is None,
        login=listener.login_offered and session.tls is not None,  # 4954 §4: never in clear
    )
    return Reply(250, "\n".join((listener.host, *lines)))


async def helo(talk: Conversation, argument: bytes) -> Reply:
    _introduce(talk, argument, extended=False)
    return Reply(250, talk.listener.host)


def _introduce(talk: Conversation, argument: bytes, *, extended: bool) -> None:
    """Any name will do (5321 §4.1.4), if it is one; a mail that was begun is given up."""
    if not _HELLO.fullmatch(argument):
        raise Refused(replies.bad_argument("Your host name belongs here"))
    talk.reset()
    talk.session.hello, talk.session.extended = argument.decode("ascii"), extended


async def starttls(talk: Conversation, argument: bytes) -> None:
    if argument:
        raise Refused(replies.NO_ARGUMENT)
    if talk.session.tls is not None:
        raise Refused(replies.TLS_TWICE)
    if talk.listener.context is None:
        raise Refused(replies.TLS_UNAVAILABLE)
    if len(talk.wire.inbox):  # it would be taken for something said inside TLS
        raise Hangup(replies.TLS_PIPELINED)
    talk.wire.send(replies.READY_FOR_TLS)
    talk.forget()
    talk.wire.secure()


async def auth(talk: Conversation, argument: bytes) -> Reply:
    if not talk.listener.login_offered:
        return replies.NOT_HERE
    if talk.session.login is not None and not talk.session.login.vouched:
        return replies.LOGIN_TWICE
    if talk.envelope is not None:
        return replies.LOGIN_IN_MAIL
    claimed = await credentials(argument, talk.response)
    answer = await talk.reception.authenticate(claimed.user, claimed.password)
    if isinstance(answer, Login):
        talk.session.login, talk.trusted = answer, True
        return replies.LOGGED_IN
    return answer


async def mail(talk: Conversation, argument: bytes) -> Reply:
    limits = talk.listener.limits
    if talk.envelope is not None:
        return replies.NESTED_MAIL
    if limits.mails is not None and talk.session.mails >= limits.mails:
        return replies.TOO_MANY_MAILS
    sender, rest = _path(argument, b"FROM:", "5.1.7")
    parameters = mail_parameters(rest)
    if not (parameters.smtputf8 or argument.isascii()):
        return Reply(553, "This sender needs SMTPUTF8", "5.6.7")
    if talk.listener.qualified and not (sender.null or sender.literal or sender.qualified):
        return Reply(554, "The sender's domain is not fully qualified", "5.1.8")
    if parameters.size is not None and parameters.size > limits.size:  # 1870 §6.1
        return replies.TOO_BIG
    reply = await talk.reception.mail(sender, parameters)
    if reply.positive:
        talk.envelope = Envelope(sender, parameters)
    return reply


async def rcpt(talk: Conversation, argument: bytes) -> Reply:
    envelope = talk.envelope
    if envelope is None:
        return replies.MAIL_FIRST
    if talk.upload is not None:
        return replies.CHUNKS_BEGUN
    if len(envelope.recipients) >= talk.listener.limits.recipients:  # 5321 §4.5.3.1.10
        talk.overshoot += 1
        return replies.TOO_MANY_RECIPIENTS if talk.overshoot <= talk.listener.limits.recipients else replies.FAR_TOO_MANY_RECIPIENTS
    talk.refused = True
    path, rest = _path(argument, b"TO:", "5.1.3")
    recipient = Recipient(path, rcpt_parameters(rest))
    if path.null:
        return Reply(501, "A recipient cannot be empty", "5.1.3")
    if not (envelope.parameters.smtputf8 or argument.isascii()):
        return Reply(553, "This recipient needs SMTPUTF8", "5.6.7")
    if talk.listener.qualified and path.domain and not (path.literal or path.qualified):
        return Reply(554, "The recipient's domain is not fully qualified", "5.1.2")
    reply = await talk.reception.rcpt(envelope, recipient)
    if reply.positive:
        envelope.recipients.append(recipient)
        talk.trusted = True
    return reply


def _path(argument: bytes, word: bytes, enhanced: str) -> tuple[Path, bytes]:
    """The path after FROM: or TO:, and what follows it."""
    if argument[: len(word)].upper() != word:
        raise Refused(replies.bad_argument(f"{word.decode('ascii')} and a path belong here"))
    try:
        return parse_path(argument[len(word) :], smtputf8=True)  # the parameter stands behind the path
    except AddressError as error:
        raise Refused(Reply(501, str(error), enhanced)) from None


async def rset(talk: Conversation, argument: bytes) -> Reply:
    if argument:
        return replies.NO_ARGUMENT
    talk.reset()
    return replies.OK


async def noop(talk: Conversation, argument: bytes) -> Reply:
    return replies.OK


async def vrfy(talk: Conversation, argument: bytes) -> Reply:
    return replies.VERIFY if argument else replies.bad_argument("An address belongs here")


async def expn(talk: Conversation, argument: bytes) -> Reply:
    return replies.NOT_HERE


async def show_help(talk: Conversation, argument: bytes) -> Reply:
    return replies.HELP


async def leave(talk: Conversation, argument: bytes) -> Reply:
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
    b"QUIT": leave,
}
