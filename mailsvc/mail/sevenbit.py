"""An 8-bit message in 7 bits (RFC 6152 §3, 2045 §6), for servers that take no other. Signatures over it have to be made anew.

Only entities with octets above 127 are encoded; everything else stays as it is.
"""

from __future__ import annotations

import re

from mailsvc.mail import charset, header, transfer

_DEPTH = 60
_LONG = 10_000  # octets of a field that are looked at word by word
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*[^\x00-\x7f](?:[^"\\]|\\.)*)"')
_BOUNDARY = re.compile(rb'\bboundary\s*=\s*(?:"([^"\r\n]+)"|([^\s;"]+))', re.IGNORECASE)
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_ENCODINGS = frozenset({b"quoted-printable", b"base64"})
_BLIND = bytes(octet if octet < 128 else ord("?") for octet in range(256))


def convert(message: bytes) -> bytes:
    """The same message in ASCII, with CRLF line ends as it came."""
    if message.isascii():
        return message
    block, start = header.split_message(message)
    converted = _entity(block, message[start:], _DEPTH)
    if b"mime-version:" not in block.lower():  # it had no MIME before its body needed an encoding
        converted = b"MIME-Version: 1.0\r\n" + converted
    return converted


def _entity(block: bytes, body: bytes, depth: int) -> bytes:
    """Header and body of a message or of one of its parts."""
    lines = [_line(line) for line in _FIELD_END.split(block.removesuffix(b"\r\n"))] if block else []
    if body.isascii():
        return _joined(lines, body)
    kind = _value(lines, b"content-type") or b"text/plain"
    main = kind.partition(b";")[0].strip().lower()
    if depth and main.startswith(b"multipart/") and (found := _BOUNDARY.search(kind)):
        return _joined(_encoded_as(lines, b"7bit"), _parts(body, (found[1] or found[2]).rstrip(b" "), depth - 1))
    if depth and main in (b"message/rfc822", b"message/global"):
        inner, start = header.split_message(body)
        return _joined(_encoded_as(lines, b"7bit"), _entity(inner, body[start:], depth - 1))
    if (_value(lines, b"content-transfer-encoding") or b"").strip().lower() in _ENCODINGS:
        return _joined(lines, body.translate(_BLIND))  # encoded octets are ASCII; what else is among them has no meaning
    if not _value(lines, b"content-type"):
        lines.append(b"Content-Type: text/plain; charset=" + (b"utf-8" if _is_utf8(body) else b"iso-8859-1"))
    if main.startswith(b"text/"):
        return _joined(_encoded_as(lines, b"quoted-printable"), transfer.quoted_printable(body.replace(b"\r\n", b"\n")))
    end = b"\r\n" if body.endswith(b"\r\n") else b""
    return _joined(_encoded_as(lines, b"base64"), transfer.encode_base64(body) + end)


def _parts(body: bytes, boundary: bytes, depth: int) -> bytes:
    """The parts between the delimiter lines, each converted; what stands before the first and behind the last is nobody's to read."""
    pieces = re.split(rb"((?:\A|\r\n)--" + re.escape(boundary) + rb"(?:--)?[ \t]*(?:(?=\r\n)|\Z))", body)
    made = [pieces[0].translate(_BLIND)]
    for delimiter, part in zip(pieces[1::2], pieces[2::2], strict=True):
        made.append(delimiter)
        if delimiter.rstrip(b" \t").endswith(b"--" + boundary + b"--"):
            made.append(part.translate(_BLIND))
            continue
        if part.isascii() or not part.startswith(b"\r\n"):
            made.append(part.translate(_BLIND))
            continue
        block, start = header.split_message(part[2:])
        made.append(b"\r\n" + _entity(block, part[2 + start :], depth))
    return b"".join(made)


def _joined(lines: list[bytes], body: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def _line(line: bytes) -> bytes:
    """A field; words beyond ASCII as encoded words (2047)."""
    if line.isascii():
        return line
    fields = header.parse_fields(line, strict=False)
    if not fields or len(line) > _LONG:
        return line.translate(_BLIND)
    text = charset.guess(fields[0].raw).replace("\r\n", "")
    bare = _QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1]), text).strip(" \t")
    try:
        return header.custom(fields[0].name, bare).removesuffix("\r\n").encode("ascii", "replace")
    except header.HeaderError:
        return line.translate(_BLIND)


def _value(lines: list[bytes], name: bytes) -> bytes | None:
    for line in lines:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.replace(b"\r\n", b"")
    return None


def _encoded_as(lines: list[bytes], encoding: bytes) -> list[bytes]:
    """The fields with another Content-Transfer-Encoding, in its place."""
    field = b"Content-Transfer-Encoding: " + encoding
    kept = [field if line.partition(b":")[0].strip().lower() == b"content-transfer-encoding" else line for line in lines]
    return kept if field in kept else [*kept, field]


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
