"""The replies of the server, one for each situation, with enhanced codes (2034 §4), and their encoding."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mailsvc.mail.reply import Reply

_LINE = 500  # bytes of text in a reply line; with code and CRLF at most 512, 5321 §4.5.3.1.5
_UNSAFE = re.compile(r"[^\x20-\x7e]")


class Refused(Exception):
    """The command is answered with `reply` and has no other effect."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class Hangup(Exception):
    """The server closes the connection after `reply`, if there is one; with `abort`, immediately."""

    def __init__(self, reply: Reply | None, *, abort: bool = False) -> None:
        super().__init__(str(reply))
        self.reply, self.abort = reply, abort


@lru_cache(maxsize=256)
def encode(reply: Reply) -> bytes:
    """The reply's bytes: one line for each line of text, cut to the limit, in printable ASCII."""
    status = f"{reply.enhanced} " if reply.enhanced else ""
    lines = [_UNSAFE.sub("?", line)[:_LINE] for line in reply.text.split("\n")]
    wire = [f"{reply.code}-{status}{line}\r\n" for line in lines[:-1]]
    wire.append(f"{reply.code} " + f"{status}{lines[-1]}".rstrip(" ") + "\r\n")  # 4954 §4: a space follows the code even without text
    return "".join(wire).encode("ascii")


OK: Final = Reply(250, "OK", "2.0.0")
SENDER_OK: Final = Reply(250, "Sender OK", "2.1.0")
RECIPIENT_OK: Final = Reply(250, "Recipient OK", "2.1.5")
CHUNK_OK: Final = Reply(250, "Chunk received", "2.0.0")
BYE: Final = Reply(221, "Bye", "2.0.0")
GO_AHEAD: Final = Reply(354, "Start mail input; end with <CRLF>.<CRLF>")
READY_FOR_TLS: Final = Reply(220, "Ready to start TLS", "2.0.0")
LOGGED_IN: Final = Reply(235, "Authenticated", "2.7.0")
HELP: Final = Reply(214, "Commands: EHLO HELO STARTTLS AUTH MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT. See RFC 5321", "2.0.0")
VERIFY: Final = Reply(252, "Cannot verify the address; send mail to it to find out", "2.1.5")

# 5321 §4.3.2
UNKNOWN: Final = Reply(500, "Command not recognized", "5.5.1")
CONTROL_CHARACTERS: Final = Reply(500, "Command contains control characters", "5.5.2")
TOO_LONG: Final = Reply(500, "Line too long", "5.5.2")
NOT_IMPLEMENTED: Final = Reply(502, "Command not implemented", "5.5.1")
NO_ARGUMENT: Final = Reply(501, "This command takes no argument", "5.5.4")

# Order of commands, 5321 §4.1.4
HELLO_FIRST: Final = Reply(503, "Send EHLO first", "5.5.1")
MAIL_FIRST: Final = Reply(503, "Send MAIL first", "5.5.1")
RCPT_FIRST: Final = Reply(503, "Send RCPT first", "5.5.1")
NESTED_MAIL: Final = Reply(503, "A mail transaction is already in progress; send RSET to end it", "5.5.1")
NO_RECIPIENTS: Final = Reply(554, "No valid recipients", "5.5.1")
CHUNKS_BEGUN: Final = Reply(503, "Not allowed between BDAT chunks", "5.5.1")

# Login, 4954 §4, §6
LOGIN_FIRST: Final = Reply(530, "Authentication required", "5.7.0")
LOGIN_NEEDS_TLS: Final = Reply(538, "Encryption required for authentication", "5.7.11")
LOGIN_TWICE: Final = Reply(503, "Already authenticated", "5.5.1")
LOGIN_IN_MAIL: Final = Reply(503, "AUTH is not allowed during a mail transaction", "5.5.1")
LOGIN_MECHANISM: Final = Reply(504, "Unknown authentication mechanism; use PLAIN or LOGIN", "5.5.4")
LOGIN_ENCODING: Final = Reply(501, "The authentication response is not valid base64, or not valid for this mechanism", "5.5.2")
LOGIN_CANCELLED: Final = Reply(501, "Authentication canceled", "5.7.0")
LOGIN_TOO_LONG: Final = Reply(500, "Authentication response too long", "5.5.6")
LOGIN_FAILED: Final = Reply(535, "Authentication credentials invalid", "5.7.8")

# TLS, 3207 §4
TLS_FIRST: Final = Reply(530, "Must issue a STARTTLS command first", "5.7.0")
TLS_TWICE: Final = Reply(503, "TLS is already active", "5.5.1")
TLS_UNAVAILABLE: Final = Reply(454, "TLS not available due to temporary reason", "4.7.0")
TLS_PIPELINED: Final = Reply(503, "Wait for the reply to STARTTLS before sending more", "5.5.1")
TLS_ON_CLEAR_PORT: Final = Reply(421, "This port does not use implicit TLS; use STARTTLS", "4.7.0")

# Limits
TOO_BIG: Final = Reply(552, "Message exceeds the size limit", "5.3.4")
TOO_MANY_RECIPIENTS: Final = Reply(452, "Too many recipients", "4.5.3")
FAR_TOO_MANY_RECIPIENTS: Final = Reply(421, "Too many recipients, closing connection", "4.7.0")
TOO_MANY_MAILS: Final = Reply(421, "Too many messages on one connection", "4.7.0")
TOO_MANY_ERRORS: Final = Reply(421, "Too many errors", "4.7.0")
TOO_MANY_LOGINS: Final = Reply(421, "Too many failed logins", "4.7.0")
TOO_MANY_COMMANDS: Final = Reply(421, "Too many commands without a message", "4.7.0")
TOO_SLOW: Final = Reply(421, "Too slow, closing connection", "4.4.2")
IDLE: Final = Reply(421, "Idle for too long, closing connection", "4.4.2")
SHUTDOWN: Final = Reply(421, "Server is shutting down", "4.3.2")
BROKEN: Final = Reply(421, "Local error, closing connection", "4.3.0")
INTERNAL: Final = Reply(451, "Local error, try again later", "4.3.0")

# Faults of a body (framing)
FAULTS: Final = {
    "size": TOO_BIG,
    "nul": Reply(550, "Message contains a NUL byte", "5.6.0"),
    "bare_cr": Reply(550, "Message contains a bare CR; lines must end with CRLF", "5.5.2"),
    "bare_lf": Reply(550, "Message contains a bare LF; lines must end with CRLF", "5.5.2"),
    "line": Reply(554, "Message has a line longer than 998 bytes", "5.6.0"),
}


def bad_argument(text: str) -> Reply:
    return Reply(501, text, "5.5.4")


def bad_parameter(text: str) -> Reply:
    return Reply(555, text, "5.5.4")
