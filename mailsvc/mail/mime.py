"""Parses a stored message (RFC 5322, 2045–2047, 2183): its header fields, text, HTML and files.

Takes linear time. What cannot be decoded is returned unchanged.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import attrs

from mailsvc.mail import charset, parameters
from mailsvc.mail.header import BLOCK_LIMIT, Field, parse_fields, split_message

DEPTH = 50
PARTS = 1000

_ENCODINGS = frozenset({"", "7bit", "8bit", "binary", "quoted-printable", "base64"})
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="

_SLICE = 1 << 20  # bytes that are decoded at once
# The fields that describe a part. A part can have megabytes of other fields.
_PART_FIELD = re.compile(
    rb"(?:\A|(?<=\r\n))(content-(?:type|disposition|transfer-encoding|id))[ \t]*+:([^\r]*+(?>(?:\r(?!\n(?![ \t]))[^\r]*+)*))", re.IGNORECASE
)
_REST_OF_LINE = re.compile(rb"[ \t]*+(?:\r\n|\Z)")


# What is inside is signed or encrypted, so it must not change (1847, 8551).
_SEALED = frozenset({"multipart/signed", "multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime"})


class MimeError(ValueError):
    """A message with too many parts, or with parts that are nested too deeply."""


@attrs.frozen
class File:
    """An attachment, or a file that the HTML shows."""

    filename: str | None
    content_type: str  # type/subtype, lower case
    content_id: str | None  # without angle brackets
    disposition: Literal["inline", "attachment"]
    content: bytes = attrs.field(repr=False)


@attrs.frozen
class Defect:
    """Why a part cannot be decoded. `part`: its file name or type; `value`: the unknown charset or encoding."""

    part: str
    kind: Literal["base64", "charset", "encoding"]
    value: str = ""


@attrs.frozen
class Parsed:
    """A parsed message. `shape` has the depth and the type of each part and multipart, in order. Defective parts are still included."""

    fields: tuple[Field, ...]
    html: str | None = attrs.field(repr=False)
    text: str | None = attrs.field(repr=False)
    files: tuple[File, ...]
    shape: tuple[tuple[int, str], ...] = attrs.field(default=(), eq=False)
    defects: tuple[Defect, ...] = attrs.field(default=(), eq=False)

    def header(self, name: str) -> str | None:
        """Returns the first field with this name, decoded."""
        return next((field.value for field in self.fields if field.name.lower() == name.lower()), None)


@attrs.frozen
class _Leaf:
    fields: dict[str, Field]  # by name in lower case; the first if there are several
    raw: bytes

    def value(self, name: str) -> str:
        # not decoded: `parameters` decodes encoded words
        field = self.fields.get(name)
        return charset.guess(field.raw).replace("\r\n", "").strip() if field else ""

    def type(self) -> tuple[str, dict[str, str]]:
        """The type, without a comment, and its parameters. "" if it is missing or invalid: text/plain is meant (2045 §5.2)."""
        kind, named = parameters.decode(self.value("content-type"))
        kind = kind.partition("(")[0].strip()
        return (kind if "/" in kind else ""), named


def parse(message: bytes) -> Parsed:
    """Parses `message`. Lines of `html` and `text` end in LF. Raises MimeError for more than 50 levels or 1,000 parts."""
    if b"\r\n" not in message:
        message = message.replace(b"\n", b"\r\n")
    block, _ = split_message(message)
    bodies: dict[str, str] = {}
    files: list[File] = []
    shape: list[tuple[int, str]] = []
    defects: list[Defect] = []
    for count, leaf in enumerate(_leaves(message, 0, len(message), 0, shape)):
        if count >= PARTS:
            raise MimeError(f"The message has more than {PARTS} parts.")
        kind, kind_parameters = leaf.type()
        disposition, names = parameters.decode(leaf.value("content-disposition"))
        filename = names.get("filename") or kind_parameters.get("name")
        content = _decoded(leaf)
        defects += _defects(leaf, filename or kind or "text/plain", kind_parameters.get("charset", ""))
        body = "html" if kind == "text/html" else "text" if kind in ("text/plain", "") else None
        if body == "text" and "html" in bodies and leaf.value("content-id"):
            body = None  # a file that the HTML names (2387): as an alternative, the text comes before it (2046 §5.1.4)
        if body and body not in bodies and filename is None and disposition != "attachment":
            bodies[body] = charset.decode(content, kind_parameters.get("charset", "")).replace("\r\n", "\n")
        else:
            files.append(_file(leaf, kind, disposition, filename, content))
    return Parsed(
        tuple(parse_fields(block, strict=False)), bodies.get("html"), bodies.get("text"), tuple(files), tuple(shape), tuple(defects)
    )


@attrs.frozen
class HtmlPart:
    """Where the HTML of a message is: its header begins at `start`, its content at `body`. `content`: decoded."""

    start: int
    body: int
    end: int
    encoding: str
    charset: str
    content: bytes = attrs.field(repr=False)


def html_part(message: bytes) -> HtmlPart | None:
    """The HTML that is shown; None if there is none, if it cannot be decoded, or if it must not change."""
    return _html_part(message, 0, len(message), 0)


def _html_part(message: bytes, start: int, end: int, depth: int) -> HtmlPart | None:
    if depth > DEPTH:
        return None
    fields, body = _entity(message, start, end)
    kind, named = _Leaf(fields, b"").type()
    boundary = named.get("boundary", "").rstrip()
    if kind.startswith("multipart/") and boundary and kind not in _SEALED:
        parts = islice(_parts(message, body, end, b"--" + boundary.encode("utf-8", "replace")), PARTS)
        return next((found for at in parts if (found := _html_part(message, *at, depth + 1)) is not None), None)
    leaf = _Leaf(fields, message[body:end] if depth or not message.endswith(b"\r\n") else message[body : end - 2])
    disposition, names = parameters.decode(leaf.value("content-disposition"))
    if kind != "text/html" or disposition == "attachment" or names.get("filename") or named.get("name"):
        return None
    if not leaf.raw or next(_defects(leaf, "", named.get("charset", "")), None) is not None:
        return None
    encoding = leaf.value("content-transfer-encoding").lower()
    return HtmlPart(start, body, body + len(leaf.raw), encoding, named.get("charset", ""), _decoded(leaf))


def _file(leaf: _Leaf, kind: str, disposition: str, filename: str | None, content: bytes) -> File:
    content_id = leaf.value("content-id").removeprefix("<").removesuffix(">") or None
    inline = disposition == "inline" or (content_id is not None and disposition != "attachment")
    return File(filename, kind or "text/plain", content_id, "inline" if inline else "attachment", content)


def _leaves(message: bytes, start: int, end: int, depth: int, shape: list[tuple[int, str]]) -> Iterator[_Leaf]:
    """Yields the parts that are not multiparts, in order, and adds all parts to `shape`."""
    if depth > DEPTH:
        raise MimeError(f"The message has more than {DEPTH} layers of parts.")
    fields, body = _entity(message, start, end)
    kind, named = _Leaf(fields, b"").type()
    boundary = named.get("boundary", "").rstrip()
    if len(shape) < 2 * PARTS:
        shape.append((depth, kind or "text/plain"))
    if kind.startswith("multipart/") and boundary:
        for part_start, part_end in _parts(message, body, end, b"--" + boundary.encode("utf-8", "replace")):
            yield from _leaves(message, part_start, part_end, depth + 1, shape)
        return
    if depth == 0 and message.endswith(b"\r\n") and end > body:
        end -= 2  # the last line end does not belong to the content, just as the one before a boundary does not
    yield _Leaf(fields, message[body:end])


def _entity(message: bytes, start: int, end: int) -> tuple[dict[str, Field], int]:
    """Returns the fields of the entity at `start`, and where its body begins."""
    if message.startswith(b"\r\n", start, end):
        return {}, start + 2
    gap = message.find(b"\r\n\r\n", start, end)
    block, body = (message[start:end], end) if gap < 0 else (message[start : gap + 2], gap + 4)
    fields: dict[str, Field] = {}
    for found in _PART_FIELD.finditer(block, 0, BLOCK_LIMIT):
        name = found[1].decode("ascii")
        fields.setdefault(name.lower(), Field(name, found[2]))
    return fields, body


def _parts(message: bytes, start: int, end: int, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Yields where each part between `delimiter` lines begins and ends (2046 §5.1.1). The closing delimiter can be missing."""
    opened: int | None = None
    at = message.find(delimiter, start, end)
    while at >= 0:
        after = at + len(delimiter)
        if at == start or message.startswith(b"\n", at - 1):
            closing = message.startswith(b"--", after, end)
            found = _REST_OF_LINE.match(message, after, end)
            if found or closing:
                if opened is not None:
                    yield opened, max(opened, at - 2)
                if closing or found is None:
                    return
                opened = after = found.end()
        at = message.find(delimiter, after, end)
    if opened is not None:
        yield opened, end


def _defects(leaf: _Leaf, part: str, named_charset: str) -> Iterator[Defect]:
    encoding = leaf.value("content-transfer-encoding").lower()
    if encoding == "base64" and _is_broken_base64(leaf.raw):
        yield Defect(part, "base64")
    elif encoding not in _ENCODINGS:
        yield Defect(part, "encoding", encoding[:40])
    if named_charset and charset.codec_of(named_charset.strip()) is None:
        yield Defect(part, "charset", named_charset.strip()[:40])


def _is_broken_base64(data: bytes) -> bool:
    """Whether it has other characters or is incomplete (2045 §6.8)."""
    count = 0
    for at in range(0, len(data), _SLICE):
        piece = data[at : at + _SLICE].translate(None, b"\r\n\t ")
        if piece.translate(None, _BASE64):
            return True
        count += len(piece)
    return count % 4 != 0 or b"=" in data.rstrip(b"=\r\n\t ")


def _decoded(leaf: _Leaf) -> bytes:
    encoding = leaf.value("content-transfer-encoding").lower()
    if encoding == "quoted-printable":
        return b"".join(map(binascii.a2b_qp, _encoded_slices(leaf.raw)))
    if encoding == "base64":
        return _decoded_base64(leaf.raw)
    return leaf.raw


def _encoded_slices(data: bytes) -> Iterator[bytes]:
    """Splits quoted-printable data after lines, or at least not within an encoded byte, so that other threads can run in between."""
    start = 0
    while len(data) - start > _SLICE:
        end = data.rfind(b"\n", start, start + _SLICE) + 1
        if end <= start:
            sign = data.rfind(b"=", start + _SLICE - 2, start + _SLICE)
            end = sign if sign > start else start + _SLICE
        yield data[start:end]
        start = end
    yield data[start:]


def _decoded_base64(data: bytes) -> bytes:
    """Decodes as much as possible if the end is missing."""
    try:
        return b"".join(map(binascii.a2b_base64, _slices(data)))
    except binascii.Error:
        pass
    for whole in (data, data + b"==", data.rstrip(b"=\r\n\t ")[:-1] + b"=="):
        try:
            return binascii.a2b_base64(whole)
        except binascii.Error:
            continue
    return b""


def _slices(data: bytes) -> Iterator[bytes]:
    """Splits base64 after lines, so that other threads can run in between. A slice with padding is not split from what follows it."""
    start, last = 0, len(data) - _SLICE
    while start < last and (end := data.rfind(b"\n", start, start + _SLICE) + 1) > start and data.find(b"=", start, end) < 0:
        yield data[start:end]
        start = end
    yield data[start:]
