"""Tracks a message that was submitted as it is: replaces its HTML part and leaves all other bytes as they are.

Signed messages stay as they are, because the signature would no longer be valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mailsvc.mail import charset, header, mime, transfer_encoding
from mailsvc.mail.mime import HtmlPart

_ENCODING = re.compile(rb"^content-transfer-encoding[ \t]*+:[^\r\n]*+\r\n(?>(?:[ \t][^\r\n]*+\r\n)*)", re.IGNORECASE | re.MULTILINE)
_SIGNATURE = "dkim-signature"


def headers(message: bytes) -> Mapping[str, str]:
    """The fields of the message by name in lower case; of several, the first."""
    block, _ = header.split_message(message)
    return {field.name.lower(): field.value for field in reversed(header.parse_fields(block, strict=False))}


def html_of(message: bytes, complete: bool) -> HtmlPart | None:
    """The HTML of a message that can be tracked. If the message is not `complete`, its HTML has to end before its end."""
    if _SIGNATURE in headers(message):
        return None
    part = mime.html_part(message)
    return part if part is not None and (complete or part.end < len(message)) else None


def replaced(message: bytes, part: HtmlPart, rewrite: Callable[[str], str]) -> bytes | None:
    """The message with another HTML. None if nothing changes, or if the HTML cannot be written in its charset."""
    codec = charset.codec_of(part.charset.strip() or "utf-8") or "utf_8"
    codec, errors = ("utf_8", "surrogateescape") if codec in ("ascii", "utf_8") else (codec, "strict")
    try:
        html = part.content.decode(codec, errors)
        if html.encode(codec, errors) != part.content:
            return None
        written = rewrite(html)
        content = written.encode(codec, errors)
    except UnicodeError:
        return None
    if written == html:
        return None
    encoding, lines = b"quoted-printable", content.replace(b"\r\n", b"\n")
    # As quoted-printable, a CR alone would leave as it is, which no server accepts, and the line ends of UTF-16 would be doubled.
    if part.encoding == "base64" or b"\r" in lines or b"\0" in lines:
        encoding, body = b"base64", transfer_encoding.encode_base64(content)
    else:
        body = transfer_encoding.quoted_printable(lines)
    block = message[part.start : part.body - 2]
    block = _ENCODING.sub(b"", block) + b"Content-Transfer-Encoding: " + encoding + b"\r\n"
    return b"".join([message[: part.start], block, b"\r\n", body, message[part.end :]])
