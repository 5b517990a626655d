"""The AUTH dialogue: SASL PLAIN (4616) and LOGIN, read strictly. Whether the credentials are valid is up to the SessionPolicy."""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.replies import Refused


@attrs.frozen
class Credentials:
    user: str
    password: str = attrs.field(repr=False)


# Sends a challenge and returns the client's response, still encoded.
Challenge = Callable[[Reply], Awaitable[bytes]]
_EMPTY = Reply(334, "")
_USER = Reply(334, "VXNlcm5hbWU6")
_PASSWORD = Reply(334, "UGFzc3dvcmQ6")


async def credentials(argument: bytes, challenge: Challenge) -> Credentials:
    """The credentials that the client gives. `argument` is what follows AUTH. Raises Refused with 501 or 504."""
    words = argument.split(b" ")
    if not words[0] or len(words) > 2:
        raise Refused(replies.bad_argument("Expected AUTH mechanism [initial response]"))
    mechanism = words[0].upper()
    initial = words[1] if len(words) == 2 else None
    if mechanism == b"PLAIN":
        return plain(_initial(initial) if initial is not None else decode(await challenge(_EMPTY)))
    if mechanism == b"LOGIN":
        user = _initial(initial) if initial is not None else decode(await challenge(_USER))
        return Credentials(_text(user), _text(decode(await challenge(_PASSWORD))))
    raise Refused(replies.LOGIN_MECHANISM)


def _initial(response: bytes) -> bytes:
    return b"" if response == b"=" else decode(response)  # 4954 §4: "=" is an empty initial response


def decode(response: bytes) -> bytes:
    """Strict base64: nothing outside the alphabet, exact padding."""
    if response == b"*":
        raise Refused(replies.LOGIN_CANCELLED)
    try:
        decoded = binascii.a2b_base64(response, strict_mode=True)
    except binascii.Error:
        raise Refused(replies.LOGIN_ENCODING) from None
    if binascii.b2a_base64(decoded, newline=False) != response:
        raise Refused(replies.LOGIN_ENCODING)
    return decoded


def plain(message: bytes) -> Credentials:
    """authzid NUL authcid NUL password. The authzid must be empty or the same user."""
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise Refused(replies.LOGIN_ENCODING)
    authorized, user, password = map(_text, parts)
    if authorized not in ("", user):
        raise Refused(replies.LOGIN_FAILED)
    return Credentials(user, password)


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(replies.LOGIN_ENCODING) from None
    if "\0" in text:
        raise Refused(replies.LOGIN_ENCODING)
    return text
