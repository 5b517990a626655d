"""The replies of the server: each situation has one, with its enhanced code (2034 §4), and how a reply is written."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mailsvc.mail.reply import Reply

_LINE = 500  # octets of text in a reply line; 512 with code and CRLF, 5321 §4.5.3.1.5
_UNSAFE = re.compile(r"[^\x20-\x7e]")


class Refused(Exception):
    """A command is answered with `reply` and nothing else."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class Hangup(Exception):
    """The server ends the connection, after `reply` when there is one; `abort`: at once."""

    def __init__(self, reply: Reply | None, *, abort: bool = False) -> None:
        super().__init__(str(reply))
        self.reply, self.abort = reply, abort


@lru_cache(maxsize=256)
def encode(reply: Reply) -> bytes:
    """The reply as it goes out: one line per line of text, none too long, printable ASCII only."""
    status = f"{reply.enhanced} " if reply.enhanced else ""
    lines = [_UNSAFE.sub("?", line)[:_LINE] for line in reply.text.split("\n")]
    wire = [f"{reply.code}-{status}{line}\r\n" for line in lines[:-1]]
    wire.append(f"{reply.code} " + f"{status}{lines[-1]}".rstrip(" ") + "\r\n")  # 4954 §4: the space stands before no text too
    return "".join(wire).encode("ascii")


OK: Final = Reply(250, "OK", "2.0.0")
SENDER_OK: Final = Reply(250, "Sender OK", "2.1.0")
RECIPIENT_OK: Final = Reply(250, "Recipient OK", "2.1.5")
CHUNK_OK: Final = Reply(250, "Chunk received", "2.0.0")
BYE: Final = Reply(221, "Bye", "2.0.0")
GO_AHEAD: Final = Reply(354, "Send the message, end with a dot on a line of its own")
READY_FOR_TLS: Final = Reply(220, "Ready to start TLS", "2.0.0")
LOGGED_IN: Final = Reply(235, "Authenticated", "2.7.0")
HELP: Final = Reply(214, "See RFC 5321. Commands: EHLO MAIL RCPT DATA BDAT RSET NOOP QUIT", "2.0.0")
VERIFY: Final = Reply(252, "Send mail to that address to find out", "2.1.5")

# 5321 §4.3.2
UNKNOWN: Final = Reply(500, "Command not recognised", "5.5.1")
UNCLEAN: Final = Reply(500, "Control characters in a command", "5.5.2")
TOO_LONG: Final = Reply(500, "Line too long", "5.5.2")
NOT_HERE: Final = Reply(502, "Command not implemented", "5.5.1")
NO_ARGUMENT: Final = Reply(501, "This command takes no argument", "5.5.4")

# Order of commands, 5321 §4.1.4
HELLO_FIRST: Final = Reply(503, "Send EHLO first", "5.5.1")
MAIL_FIRST: Final = Reply(503, "Send MAIL first", "5.5.1")
RCPT_FIRST: Final = Reply(503, "Send RCPT first", "5.5.1")
NESTED_MAIL: Final = Reply(503, "A mail is already under way; RSET ends it", "5.5.1")
NO_RECIPIENTS: Final = Reply(554, "No valid recipients", "5.5.1")
CHUNKS_BEGUN: Final = Reply(503, "Not between BDAT chunks", "5.5.1")

# Login, 4954 §4, §6
LOGIN_FIRST: Final = Reply(530, "Authentication required", "5.7.0")
LOGIN_NEEDS_TLS: Final = Reply(538, "Encryption required for authentication", "5.7.11")
LOGIN_TWICE: Final = Reply(503, "Already authenticated", "5.5.1")
LOGIN_IN_MAIL: Final = Reply(503, "Not while a mail is under way", "5.5.1")
LOGIN_MECHANISM: Final = Reply(504, "Authentication mechanism not known", "5.5.4")
LOGIN_ENCODING: Final = Reply(501, "Response is not valid base64 of that mechanism", "5.5.2")
LOGIN_CANCELLED: Final = Reply(501, "Authentication cancelled", "5.7.0")
LOGIN_TOO_LONG: Final = Reply(500, "Authentication response too long", "5.5.6")
LOGIN_FAILED: Final = Reply(535, "Authentication credentials invalid", "5.7.8")

# TLS, 3207 §4
TLS_FIRST: Final = Reply(530, "Must issue a STARTTLS command first", "5.7.0")
TLS_TWICE: Final = Reply(503, "TLS is already in use", "5.5.1")
TLS_UNAVAILABLE: Final = Reply(454, "TLS not available due to temporary reason", "4.7.0")
TLS_PIPELINED: Final = Reply(503, "Nothing may follow STARTTLS before its reply", "5.5.1")
TLS_ON_CLEAR_PORT: Final = Reply(421, "TLS begins with STARTTLS on this port", "4.7.0")

# Limits
TOO_BIG: Final = Reply(552, "Message exceeds the size limit", "5.3.4")
TOO_MANY_RECIPIENTS: Final = Reply(452, "Too many recipients", "4.5.3")
FAR_TOO_MANY_RECIPIENTS: Final = Reply(421, "Too many recipients, closing", "4.7.0")
TOO_MANY_MAILS: Final = Reply(421, "Too many mails on one connection", "4.7.0")
TOO_MANY_ERRORS: Final = Reply(421, "Too many errors", "4.7.0")
TOO_MANY_LOGINS: Final = Reply(421, "Too many failed logins", "4.7.0")
TOO_MUCH_TALK: Final = Reply(421, "Too many commands without a mail", "4.7.0")
TOO_SLOW: Final = Reply(421, "Too slow, closing", "4.4.2")
IDLE: Final = Reply(421, "Idle for too long, closing", "4.4.2")
SHUTDOWN: Final = Reply(421, "Shutting down", "4.3.2")
BROKEN: Final = Reply(421, "Local error, closing", "4.3.0")
INTERNAL: Final = Reply(451, "Local error, try again later", "4.3.0")

# What is wrong with a body, by its fault (framing)
FAULTS: Final = {
    "size": TOO_BIG,
    "nul": Reply(550, "Message contains a NUL octet", "5.6.0"),
    "bare_cr": Reply(550, "Message contains a bare CR: lines end with CRLF", "5.5.2"),
    "bare_lf": Reply(550, "Message contains a bare LF: lines end with CRLF", "5.5.2"),
    "line": Reply(554, "Message has a line of more than 998 octets", "5.6.0"),
}


def bad_argument(text: str) -> Reply:
    return Reply(501, text, "5.5.4")


def bad_parameter(text: str) -> Reply:
    return Reply(555, text, "5.5.4")
