"""The envelope of one transaction, and how its commands are written (RFC 5321 §4.1.1.2–3, 1870, 6152, 6531, 3461).

An address goes out octet for octet as it is given, or not at all.
"""

from __future__ import annotations

import re
from typing import Literal

import attrs
from attrs.validators import deep_iterable, matches_re, optional

from mailsvc.mail.xtext import typed, xtext
from mailsvc.smtp.client.capabilities import Capabilities

_ADDRESS_LIMIT = 320  # octets: 64 + "@" + 255, 5321 §4.5.3.1

# 5321 §4.1.2. Dots may stand anywhere in an unquoted local part: such mailboxes exist, and no dot ends a command.
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
    """What was given cannot be written as a path without changing it."""


@attrs.frozen
class Envelope:
    """Who sends one message to whom. `size` is its length in octets before stuffing; 0 when unknown."""

    sender: str  # "" is the null reverse-path
    recipients: tuple[str, ...]
    size: int = 0
    eight_bit: bool = False  # some octet of the message is above 127
    smtputf8: bool = False  # the message itself needs SMTPUTF8 (an address that does is seen here)
    ret: Literal["FULL", "HDRS"] | None = None  # 3461 §4.3
    envid: str | None = None  # 3461 §4.4
    notify: tuple[str | None, ...] = attrs.field(default=(), validator=deep_iterable(optional(matches_re(_NOTIFY))))
    # 3461 §4.1, each recipient's, in their order; empty: nobody's
    originals: tuple[str | None, ...] = ()  # 3461 §4.2: type and address that each recipient was first given as


def path(address: str) -> bytes:
    """`<address>`, or BadAddress. The empty address is the null path."""
    if not address:
        return b"<>"
    if not address.isprintable():
        raise BadAddress("an address with a character that cannot be printed")
    octets = address.encode("utf-8")
    if len(octets) > _ADDRESS_LIMIT or _ADDRESS.fullmatch(octets) is None:
        raise BadAddress("not an address of the form local@domain")
    return b"<" + octets + b">"


def mail_command(sender: bytes, envelope: Envelope, offers: Capabilities, utf8: bool) -> bytes:
    """MAIL with what the server offered to understand, and nothing else."""
    command = b"MAIL FROM:" + sender
    if offers.size and envelope.size:
        command += b" SIZE=%d" % envelope.size  # 1870 §5
    if offers.eight_bit and (envelope.eight_bit or utf8):
        command += b" BODY=8BITMIME"  # 6152 §2; with SMTPUTF8 the header may hold such octets too, 6531 §3.6
    if utf8:
        command += b" SMTPUTF8"
    if offers.dsn:
        if envelope.ret:
            command += b" RET=" + envelope.ret.encode("ascii")
        if envelope.envid:
            command += b" ENVID=" + xtext(envelope.envid).encode("ascii")
    return command + b"\r\n"


def rcpt_command(recipient: bytes, number: int, envelope: Envelope, offers: Capabilities) -> bytes:
    if not offers.dsn or not (envelope.notify or envelope.originals):
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
