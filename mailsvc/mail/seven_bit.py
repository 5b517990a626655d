"""Converts an 8-bit message to 7 bits (RFC 6152 §3, 2045 §6), for servers without 8BITMIME. It must be signed again afterwards.

Non-ASCII addresses in the header cannot be replied to afterwards (6857).

Only entities with bytes above 127 are encoded. The message is parsed once, however deeply its parts are nested, and written in slices,
so that other threads can run while 40 MB are converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from mailsvc.mail import charset, header, parameters, transfer_encoding
from mailsvc.mail.structure import common_beginning

_DEPTH = 60
_LONG = 10_000  # bytes of a field that is encoded word by word
_LONG_ADDRESSES = 40_000  # of one with addresses: an email by API can have 50 of 320 bytes
_HEADERS = 8 * 1024 * 1024  # bytes of all headers; in parts after that, bytes above 127 become `?`
_WORDS = 512 * 1024  # bytes of non-ASCII fields that are written as encoded words
_PARTS = 10_000  # delimiter lines that are parsed; the rest belongs to the last part
_SLICE = 64 * 1024
_WINDOW = 1024 * 1024
_QUOTED = re.compile(r'"((?>(?:[^"\\]|\\.)*))("?)')
_BOUNDARY = re.compile(rb'\bboundary\s*+=\s*+(?:"([^"\r\n]{1,998})"|([^\s;"]{1,998}+))', re.IGNORECASE)
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_WITH_PARAMETERS = frozenset({"content-type", "content-disposition"})
_TEXT = frozenset({"subject", "comments", "content-description"})
_TO_ASCII = bytes(octet if octet < 128 else ord("?") for octet in range(256))


def convert(message: bytes) -> bytes:
    """Returns the message in ASCII, with the same line ends."""
    if message.isascii():
        return message
    whole = _Reader(message).read()
    converted = b"".join(_Writer(message).entity(whole))
    if b"mime-version:" not in whole.block(message).lower():  # the message was not MIME until now
        converted = b"MIME-Version: 1.0\r\n" + converted
    return converted


# --- reading ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Entity:
    """A message or part, as positions in the text. `inner`: what a multipart or message contains, in order."""

    start: int
    body: int = 0
    end: int = 0
    boundary: bytes | None = None  # of a multipart
    digest: bool = False  # its parts are messages unless they have another type (2046 §5.1.5)
    unread: bool = False
    inner: list[_Entity | tuple[int, int]] = attrs.field(factory=list)
    ascii_header: bool = True
    ascii_body: bool = True

    def block(self, message: bytes) -> bytes:
        """The header, including the CRLF of its last field."""
        return message[self.start : self.body - 2 if self.body <= self.end else self.end]


class _Reader:
    """Finds the parts. A delimiter belongs to the outermost multipart with its boundary."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._open: list[_Entity] = []  # multiparts, messages, and last the current entity
        self._known: dict[bytes, tuple[int, bool]] = {}
        self._blank = -1  # the next end of a header, once searched for
        self._begin = b"\r\n--"  # the common beginning of all delimiter lines: longer ones are found faster
        self._room, self._parts = _HEADERS, 0

    def read(self) -> _Entity:
        whole = _Entity(0)
        at = self._enter(whole)
        while self._parts < _PARTS and (at := _find(self._message, self._begin, at)) >= 0:
            found, end = self._line(at)
            at = end if found is None else self._delimiter(*found, at, end)
        self._close(0, len(self._message))
        return whole

    def _line(self, at: int) -> tuple[tuple[int, bool] | None, int]:
        """Returns which multipart the delimiter line at `at` belongs to, whether it is the last one, and where the line ends."""
        longest = at + 1100
        end = self._message.find(b"\r\n", at + 2, longest)
        if end < 0:
            end = min(len(self._message), longest)
        return self._known.get(self._message[at + 4 : end].rstrip(b" \t")), end

    def _enter(self, entity: _Entity) -> int:
        """Starts an entity. Returns where the search for delimiters continues."""
        self._open.append(entity)
        entity.body, delimiter = self._header_end(entity.start)
        if delimiter is not None:
            return delimiter
        block = self._message[entity.start : entity.body - 2]
        self._room -= len(block)
        entity.unread = self._room < 0
        if entity.unread or len(self._open) > _DEPTH:
            return entity.body - 2
        kind = _value(_lines(block), b"content-type") or (b"message/rfc822" if self._in_digest() else b"")
        main = kind.partition(b";")[0].strip().lower()
        if main.startswith(b"multipart/") and (found := _BOUNDARY.search(kind)):
            entity.boundary = (found[1] or found[2]).rstrip(b" ")
            entity.digest = main == b"multipart/digest"
            self._known.setdefault(entity.boundary, (len(self._open) - 1, False))
            self._known.setdefault(entity.boundary + b"--", (len(self._open) - 1, True))
            self._begin = b"\r\n--" + common_beginning(list(self._known))
            entity.inner.append((entity.body, -1))
        elif main in (b"message/rfc822", b"message/global"):
            entity.inner.append(inner := _Entity(entity.body))
            return self._enter(inner)
        return entity.body - 2

    def _in_digest(self) -> bool:
        return len(self._open) > 1 and self._open[-2].digest

    def _header_end(self, start: int) -> tuple[int, int | None]:
        """Returns where the body begins, and the delimiter if one comes first."""
        message = self._message
        if message.startswith(b"\r\n", start):
            return start + 2, None
        if self._blank < start:
            self._blank = _find(message, b"\r\n\r\n", start)
            if self._blank < 0:
                self._blank = len(message)
        at = start
        while (at := message.find(self._begin, at, self._blank + 2 + len(self._begin))) >= 0:
            found, end = self._line(at)
            if found is not None:
                return len(message) + 4, at
            at = end
        return self._blank + 4, None

    def _delimiter(self, level: int, closing: bool, at: int, end: int) -> int:
        self._parts += 1
        self._close(level + 1, at)
        inner, last = self._open[level].inner, self._open[level].inner[-1]
        if isinstance(last, tuple) and last[1] < 0:
            inner[-1] = last[0], at
            at = max(at, last[0])  # the line end before the first delimiter may be that of the header
        inner.append((at, end))
        if closing or not self._message.startswith(b"\r\n", end) or self._line(end)[0] is not None:
            inner.append((end, -1))
            return end
        inner.append((end, end + 2))
        inner.append(part := _Entity(end + 2))
        return self._enter(part)

    def _close(self, level: int, end: int) -> None:
        """Ends all entities from this level on."""
        while len(self._open) > level:
            entity = self._open.pop()
            entity.end = max(end, entity.start)
            if entity.boundary is not None:
                last = entity.inner[-1]
                if isinstance(last, tuple) and last[1] < 0:
                    entity.inner[-1] = last[0], entity.end
                for line in (entity.boundary, entity.boundary + b"--"):
                    if self._known.get(line, (-1, False))[0] == len(self._open):
                        del self._known[line]
                self._begin = b"\r\n--" + common_beginning(list(self._known))
            entity.ascii_header = self._message[entity.start : min(entity.body, entity.end)].isascii()
            entity.ascii_body = all(map(self._ascii, entity.inner)) if entity.inner else self._ascii((entity.body, entity.end))

    def _ascii(self, inner: _Entity | tuple[int, int]) -> bool:
        if isinstance(inner, _Entity):
            return inner.ascii_header and inner.ascii_body
        return self._message[inner[0] : inner[1]].isascii()


# --- writing ---------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, message: bytes) -> None:
        self._message = message
        self._room = _WORDS

    def entity(self, entity: _Entity) -> Iterator[bytes]:
        if entity.ascii_header and entity.ascii_body:
            yield from self._as_is(entity.start, entity.end)
            return
        block = entity.block(self._message)
        if entity.unread:
            yield block.translate(_TO_ASCII) + b"\r\n"
            yield from self._to_ascii(entity.body, entity.end)
            return
        lines = [self._line(line) for line in _lines(block)]
        if entity.ascii_body:
            yield _joined(lines)
            yield from self._as_is(entity.body, entity.end)
        elif entity.inner:
            yield _joined(_encoded_as(lines, b"7bit"))
            for inner in entity.inner:
                yield from self.entity(inner) if isinstance(inner, _Entity) else self._to_ascii(*inner)
        else:
            yield from self._leaf(lines, entity)

    def _leaf(self, lines: list[bytes], entity: _Entity) -> Iterator[bytes]:
        body = self._message[entity.body : entity.end]
        encoding = (_value(lines, b"content-transfer-encoding") or b"").strip().lower()
        if encoding == b"base64":
            yield _joined(lines)  # encoded content is ASCII; other bytes have no meaning
            yield from self._to_ascii(entity.body, entity.end)
            return
        if encoding == b"quoted-printable":  # bytes above 127 are not allowed, but mail programs show them
            yield _joined(lines)
            yield from transfer_encoding.escaped(body)
            return
        kind = _value(lines, b"content-type")
        if not kind:
            lines.append(b"Content-Type: text/plain; charset=" + (b"utf-8" if charset.not_utf8(body) is None else b"iso-8859-1"))
        if not kind or kind.partition(b";")[0].strip().lower().startswith(b"text/"):
            yield _joined(_encoded_as(lines, b"quoted-printable"))
            yield transfer_encoding.quoted_printable(b"".join(_with_lf(body)))
        else:
            yield _joined(_encoded_as(lines, b"base64"))
            yield transfer_encoding.encode_base64(body) + (b"\r\n" if body.endswith(b"\r\n") else b"")

    def _as_is(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, _SLICE):
            yield self._message[at : min(at + _SLICE, end)]

    def _to_ascii(self, start: int, end: int) -> Iterator[bytes]:
        """Writes preambles, delimiters and epilogues, which need no encoding."""
        for piece in self._as_is(start, end):
            yield piece.translate(_TO_ASCII)

    def _line(self, line: bytes) -> bytes:
        """Writes a field, with non-ASCII text as encoded words (2047)."""
        if line.isascii():
            return line
        self._room -= len(line)
        fields = header.parse_fields(line, strict=False)
        if not fields or len(line) > _longest(fields[0].name) or self._room < 0:
            return line.translate(_TO_ASCII)
        try:
            return _encoded_field(fields[0]).removesuffix("\r\n").encode("ascii", "replace")
        except header.HeaderError:
            return line.translate(_TO_ASCII)


def _longest(name: str) -> int:
    return _LONG_ADDRESSES if header.is_address_field(name) else _LONG


def _encoded_field(field: header.Field) -> str:
    text, name = charset.guess(field.raw).replace("\r\n", "").strip(" \t"), field.name.lower()
    if name in _WITH_PARAMETERS:
        return header.structured(field.name, *parameters.in_ascii(text))
    kept = name in _TEXT or header.is_address_field(name)
    return header.custom(field.name, text if kept else _QUOTED.sub(_bare, text), downgrade=True)


def _find(message: bytes, sub: bytes, start: int) -> int:
    """Searches in windows, so that other threads can run."""
    for at in range(start, len(message), _WINDOW):
        found = message.find(sub, at, at + _WINDOW + len(sub) - 1)
        if found >= 0:
            return found
    return -1


def _with_lf(text: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        end = at + _WINDOW
        end += text[end - 1 : end + 1] == b"\r\n"
        yield text[at:end].replace(b"\r\n", b"\n")
        at = end


def _bare(found: re.Match[str]) -> str:
    """Removes the quotes of a non-ASCII string, because an encoded word cannot be quoted."""
    if not found[2] or found[1].isascii():
        return found[0]
    return re.sub(r"\\(.)", r"\1", found[1])


def _lines(block: bytes) -> list[bytes]:
    return _FIELD_END.split(block.removesuffix(b"\r\n")) if block else []


def _joined(lines: list[bytes]) -> bytes:
    return b"".join([line + b"\r\n" for line in lines]) + b"\r\n"


def _value(lines: list[bytes], name: bytes) -> bytes | None:
    for line in lines:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.replace(b"\r\n", b"")
    return None


def _encoded_as(lines: list[bytes], encoding: bytes) -> list[bytes]:
    """Replaces the Content-Transfer-Encoding."""
    field = b"Content-Transfer-Encoding: " + encoding
    kept = [field if line.partition(b":")[0].strip().lower() == b"content-transfer-encoding" else line for line in lines]
    return kept if field in kept else [*kept, field]
