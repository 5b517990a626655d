"""Reading a stored message back (RFC 5322, 2045–2047, 2183): its fields, its text, its html and its files.

Time is linear in the size of the message; what cannot be understood is given as it is.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Literal

import attrs

from mailsvc.mail import charset, parameters
from mailsvc.mail.header import BLOCK_LIMIT, Field, parse_fields, split_message

DEPTH = 50
PARTS = 1000

_SLICE = 1 << 20  # octets of base64 that are decoded at once
# The fields of a part that say what it is; a part may have megabytes of others.
_PART_FIELD = re.compile(
    rb"(?:\A|(?<=\r\n))(content-(?:type|disposition|transfer-encoding|id))[ \t]*+:([^\r]*+(?:\r(?!\n(?![ \t]))[^\r]*+)*+)", re.IGNORECASE
)
_REST_OF_LINE = re.compile(rb"[ \t]*+(?:\r\n|\Z)")


class MimeError(ValueError):
    """A message with more parts, or parts deeper in each other, than mail has."""


@attrs.frozen
class File:
    """An attachment, or a file shown inside the html."""

    filename: str | None
    content_type: str  # type/subtype, lower case
    content_id: str | None  # without angle brackets
    disposition: Literal["inline", "attachment"]
    content: bytes = attrs.field(repr=False)


@attrs.frozen
class Parsed:
    fields: tuple[Field, ...]
    html: str | None = attrs.field(repr=False)
    text: str | None = attrs.field(repr=False)
    files: tuple[File, ...]
    shape: tuple[tuple[int, str], ...] = attrs.field(default=(), eq=False)  # how deep, and what: each part and multipart, in order

    def header(self, name: str) -> str | None:
        """The first field of that name, decoded."""
        return next((field.value for field in self.fields if field.name.lower() == name.lower()), None)


@attrs.frozen
class _Leaf:
    fields: dict[str, Field]  # lower-case name → first of that name
    raw: bytes

    def value(self, name: str) -> str:
        # raw text: encoded words in parameters are the business of `parameters`
        field = self.fields.get(name)
        return charset.guess(field.raw).replace("\r\n", "").strip() if field else ""


def parse(message: bytes) -> Parsed:
    """Line ends in `html` and `text` are LF. MimeError beyond 50 layers or 1,000 parts."""
    if b"\r\n" not in message:
        message = message.replace(b"\n", b"\r\n")
    block, _ = split_message(message)
    bodies: dict[str, str] = {}
    files: list[File] = []
    shape: list[tuple[int, str]] = []
    for count, leaf in enumerate(_leaves(message, 0, len(message), 0, shape)):
        if count >= PARTS:
            raise MimeError(f"The message has more than {PARTS} parts.")
        kind, kind_parameters = parameters.decode(leaf.value("content-type"))
        disposition, names = parameters.decode(leaf.value("content-disposition"))
        filename = names.get("filename") or kind_parameters.get("name")
        content = _decoded(leaf)
        body = "html" if kind == "text/html" else "text" if kind in ("text/plain", "") else None
        if body and body not in bodies and filename is None and disposition != "attachment":
            bodies[body] = charset.decode(content, kind_parameters.get("charset", "")).replace("\r\n", "\n")
        else:
            files.append(_file(leaf, kind, disposition, filename, content))
    return Parsed(tuple(parse_fields(block, strict=False)), bodies.get("html"), bodies.get("text"), tuple(files), tuple(shape))


def _file(leaf: _Leaf, kind: str, disposition: str, filename: str | None, content: bytes) -> File:
    content_id = leaf.value("content-id").removeprefix("<").removesuffix(">") or None
    inline = disposition == "inline" or (content_id is not None and disposition != "attachment")
    return File(filename, kind or "text/plain", content_id, "inline" if inline else "attachment", content)


def _leaves(message: bytes, start: int, end: int, depth: int, shape: list[tuple[int, str]]) -> Iterator[_Leaf]:
    """The parts that are no multipart, in order; `shape` gets these too."""
    if depth > DEPTH:
        raise MimeError(f"The message has more than {DEPTH} layers of parts.")
    fields, body = _entity(message, start, end)
    kind, named = parameters.decode(_Leaf(fields, b"").value("content-type"))
    boundary = named.get("boundary", "").rstrip()
    if len(shape) < 2 * PARTS:
        shape.append((depth, kind or "text/plain"))
    if kind.startswith("multipart/") and boundary:
        for part_start, part_end in _parts(message, body, end, b"--" + boundary.encode("utf-8", "replace")):
            yield from _leaves(message, part_start, part_end, depth + 1, shape)
        return
    if depth == 0 and message.endswith(b"\r\n") and end > body:
        end -= 2  # the end of the message's last line, as a boundary's line end is not of the part before it
    yield _Leaf(fields, message[body:end])


def _entity(message: bytes, start: int, end: int) -> tuple[dict[str, Field], int]:
    """The fields of the entity at `start`, and where its body begins."""
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
    """Where the parts between `delimiter` lines begin and end (2046 §5.1.1). A missing last line is forgiven."""
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


def _decoded(leaf: _Leaf) -> bytes:
    encoding = leaf.value("content-transfer-encoding").lower()
    if encoding == "quoted-printable":
        return b"".join(map(binascii.a2b_qp, _encoded_slices(leaf.raw)))
    if encoding == "base64":
        return _decoded_base64(leaf.raw)
    return leaf.raw


def _encoded_slices(octets: bytes) -> Iterator[bytes]:
    """Quoted-printable, cut after lines or at least not inside of an encoded byte, so that other threads get their turn."""
    start = 0
    while len(octets) - start > _SLICE:
        end = octets.rfind(b"\n", start, start + _SLICE) + 1
        if end <= start:
            sign = octets.rfind(b"=", start + _SLICE - 2, start + _SLICE)
            end = sign if sign > start else start + _SLICE
        yield octets[start:end]
        start = end
    yield octets[start:]


def _decoded_base64(octets: bytes) -> bytes:
    """As much as there is, when the end is missing."""
    try:
        return b"".join(map(binascii.a2b_base64, _slices(octets)))
    except binascii.Error:
        pass
    for whole in (octets, octets + b"==", octets.rstrip(b"=\r\n\t ")[:-1] + b"=="):
        try:
            return binascii.a2b_base64(whole)
        except binascii.Error:
            continue
    return b""


def _slices(octets: bytes) -> Iterator[bytes]:
    """Whole lines, so that other threads have their turn between two of them; all at once where padding comes before the end."""
    start, last = 0, len(octets) - _SLICE
    while start < last and (end := octets.rfind(b"\n", start, start + _SLICE) + 1) > start and octets.find(b"=", start, end) < 0:
        yield octets[start:end]
        start = end
    yield octets[start:]
