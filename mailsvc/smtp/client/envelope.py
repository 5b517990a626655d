"""The envelope of one transaction, and its commands (RFC 5321 §4.1.1.2–3, 1870, 6152, 6531, 3461).

An address is sent exactly as it was given, or not at all.
"""

from __future__ import annotations

import re
from typing import Literal

import attrs
from attrs.validators import deep_iterable, matches_re, optional

from mailsvc.mail.xtext import typed, xtext
from mailsvc.smtp.client.capabilities import Capabilities

_ADDRESS_LIMIT = 320  # bytes: 64 + "@" + 255, 5321 §4.5.3.1

# 5321 §4.1.2, but with dots anywhere in an unquoted local part: such mailboxes exist, and no dot can end a command.
_ADDRESS = re.compile(
    rb"""
    (?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~.\x80-\xff-]+                               # a local part without quotes
      | "(?: [\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff] | \\[\x20-\x7e] )*" )        # or a quoted one
    @
    (?: [A-Za-z0-9_\x80-\xff-]+ (?: \. [A-Za-z0-9_\x80-\xff-]+ )* \.?           # a domain
      | \[ [\x21-\x5a\x5e-\x7e]+ \] )                                           # or an address literal
    """,
    re.VERBOSE,
)


_NOTIFY = r"NEVER|(SUCCESS|FAILURE|DELAY)(,(SUCCESS|FAILURE|DELAY)){0,2}"
_ORIGINAL = re.compile(r"[A-Za-z0-9-]+;[ -~]+|[uU][tT][fF]-8;[^\x00-\x1f\x7f]+")


class BadAddress(ValueError):
    """The address cannot be written as a path without changing it."""


@attrs.frozen
class Envelope:
    """The sender and recipients of one message. `size` is in bytes, before dot-stuffing; 0 if unknown."""

    sender: str  # "" is the null reverse-path
    recipients: tuple[str, ...]
    size: int = 0
    eight_bit: bool = False  # the message contains bytes above 127
    smtputf8: bool = False  # the message itself requires SMTPUTF8 (addresses are checked separately)
    ret: Literal["FULL", "HDRS"] | None = None  # 3461 §4.3
    envid: str | None = None  # 3461 §4.4
    notify: tuple[str | None, ...] = attrs.field(default=(), validator=deep_iterable(optional(matches_re(_NOTIFY))))
    # 3461 §4.1, for each recipient, in their order; empty: for none
    originals: tuple[str | None, ...] = ()  # 3461 §4.2: type and original address of each recipient


def path(address: str) -> bytes:
    """`<address>`, or BadAddress. The empty address is the null path."""
    if not address:
        return b"<>"
    if not address.isprintable():
        raise BadAddress("the address contains a control character")
    data = address.encode("utf-8")
    if len(data) > _ADDRESS_LIMIT or _ADDRESS.fullmatch(data) is None:
        raise BadAddress("the address does not have the form local@domain")
    return b"<" + data + b">"


def mail_command(sender: bytes, envelope: Envelope, capabilities: Capabilities, utf8: bool) -> bytes:
    """MAIL with the parameters that the server supports."""
    command = b"MAIL FROM:" + sender
    if capabilities.size and envelope.size:
        command += b" SIZE=%d" % envelope.size  # 1870 §5
    if capabilities.eight_bit and (envelope.eight_bit or utf8):
        command += b" BODY=8BITMIME"  # 6152 §2; with SMTPUTF8 the header may contain 8-bit bytes too, 6531 §3.6
    if utf8:
        command += b" SMTPUTF8"
    if capabilities.dsn:
        if envelope.ret:
            command += b" RET=" + envelope.ret.encode("ascii")
        if envelope.envid:
            command += b" ENVID=" + xtext(envelope.envid).encode("ascii")
    return command + b"\r\n"


def rcpt_command(recipient: bytes, number: int, envelope: Envelope, capabilities: Capabilities) -> bytes:
    if not capabilities.dsn or not (envelope.notify or envelope.originals):
        return b"RCPT TO:" + recipient + b"\r\n"
    command = b"RCPT TO:" + recipient
    notify = envelope.notify[number] if envelope.notify else None
    if notify:
        command += b" NOTIFY=" + notify.encode("ascii")
    original = envelope.originals[number] if envelope.originals else None
    if original and _ORIGINAL.fullmatch(original):
        kind, _, address = original.partition(";")
        command += b" ORCPT=" + typed(kind, address).encode("ascii")
    return command + b"\r\n"
