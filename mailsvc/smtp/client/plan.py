"""Plans a transaction before it starts: the commands for this server, and the recipients that are refused because it cannot accept them."""

from __future__ import annotations

from typing import Literal

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.envelope import BadAddress, Envelope, mail_command, path, rcpt_command

# How a message is sent: after DATA, one command at a time; after DATA; after BDAT, once the recipients were accepted; after BDAT, together
# with all commands.
SendMode = Literal["single", "data", "bdat", "together"]
_UTF8 = Reply(550, "The server does not support internationalized addresses or headers (SMTPUTF8)", "5.6.7")  # 6531 §3.5
_EIGHT_BIT = Reply(554, "The server does not support 8-bit messages (8BITMIME)", "5.6.3")  # 6152 §3
_TOO_MANY = Reply(452, "The server accepts fewer recipients at once (LIMITS)", "4.5.3")  # RFC 9422 §4.2
MALFORMED = Reply(554, "The message has a line end that is not CRLF", "5.6.0")  # 5321 §2.3.8


@attrs.frozen
class Plan:
    """`commands` are MAIL, an RCPT for each recipient in `tried`, and DATA or BDAT; `refused` has a reply for each other one, by number."""

    commands: tuple[bytes, ...]
    tried: tuple[int, ...]
    refused: dict[int, Reply]


def lay_out(envelope: Envelope, capabilities: Capabilities, *, chunked: bool = False) -> Plan:
    """`chunked`: send the message as one chunk of `envelope.size` bytes (3030 §2)."""
    utf8 = envelope.smtputf8 or not envelope.sender.isascii()
    refusal, sender = _sender(envelope, capabilities, utf8)
    if refusal is not None:
        return Plan((), (), dict.fromkeys(range(len(envelope.recipients)), refusal))
    commands: list[bytes] = []
    tried: list[int] = []
    refused: dict[int, Reply] = {}
    for number, recipient in enumerate(envelope.recipients):
        if not recipient.isascii():
            if not capabilities.smtputf8:
                refused[number] = _UTF8
                continue
            utf8 = True
        if 0 < capabilities.rcpt_max <= len(tried):
            refused[number] = _TOO_MANY
            continue
        try:
            if not recipient:
                raise BadAddress("the recipient address is empty")
            commands.append(rcpt_command(path(recipient), number, envelope, capabilities))
        except BadAddress as fault:
            refused[number] = Reply(553, f"Not sent: {fault}", "5.1.3")
        else:
            tried.append(number)
    if not tried:
        return Plan((), (), refused)
    last = b"BDAT %d LAST\r\n" % envelope.size if chunked else b"DATA\r\n"
    return Plan((mail_command(sender, envelope, capabilities, utf8), *commands, last), tuple(tried), refused)


def _sender(envelope: Envelope, capabilities: Capabilities, utf8: bool) -> tuple[Reply | None, bytes]:
    """The reply if this server cannot accept the message for any recipient, and the reverse-path."""
    if capabilities.size_limit and envelope.size > capabilities.size_limit:  # 1870 §6.1
        text = f"The message has {envelope.size} bytes, the server accepts {capabilities.size_limit}"
        return Reply(552, text, "5.3.4"), b""
    if envelope.eight_bit and not capabilities.eight_bit:
        return _EIGHT_BIT, b""
    if utf8 and not capabilities.smtputf8:
        return _UTF8, b""
    try:
        return None, path(envelope.sender)
    except BadAddress as fault:
        return Reply(553, f"Not sent: {fault}", "5.1.7"), b""
