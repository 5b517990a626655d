"""Checks how many parts a message has and how deeply they are nested (RFC 2046 §5.1), without decoding anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
from stringzilla import find

DEPTH_LIMIT = 50
PARTS_LIMIT = 1000
_WINDOW = 256 * 1024  # bytes of a file that are searched at once; other threads wait meanwhile
_HEAD_LIMIT = 64 * 1024  # bytes of a part's header that are examined
_LINE = 1000  # bytes of a delimiter line that are examined
_BOUNDARY = re.compile(rb'\bboundary\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
# Both are searched in lower case, and begin with a word, because searching for a word is fast.
_MESSAGE = re.compile(rb"content-type(?<![^\n]content-type)[ \t]*+:\s*+message/(?:rfc822|global)(?![\w-])")
_MULTIPART = re.compile(
    rb"content-type(?:(?<=\r\ncontent-type)|(?<=\Acontent-type))[ \t]*+:((?>(?:[ \t\n\v\f]|\r(?!\n(?![ \t])))*))multipart"
)
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_TOO_DEEP = f"The parts of the message are nested more than {DEPTH_LIMIT} deep."


class ByteSource(Protocol):
    """Bytes, or a file that is mapped into memory."""

    def find(self, sub: bytes, start: int = ..., end: int = ..., /) -> int: ...
    def __getitem__(self, where: slice, /) -> bytes: ...
    def __len__(self) -> int: ...


def fault(head: bytes, message: ByteSource, start: int) -> str | None:
    """Returns why a message exceeds the limits, or None. `head` is its header block; its body begins at `start`."""
    lower = head.lower()
    if lower.find(b"multipart") < 0 and lower.find(b"message/") < 0:  # faster than `in`
        return None
    scan = _Scan(message, start - 2)
    boundary, messages = scan.inside(head, lower)
    if messages > DEPTH_LIMIT:
        return _TOO_DEEP
    if boundary is None:
        return None
    scan.open(boundary, messages)
    parts = 0
    while (line := scan.delimiter(len(message))) is not None:
        level, closing = scan.delimiters[line]
        if closing and not level:
            return None
        scan.close(level if closing else level + 1)
        scan.at += 4 + len(line)
        if closing:
            continue
        parts += 1
        if parts > PARTS_LIMIT:
            return f"The message has more than {PARTS_LIMIT} parts."
        part = scan.part_header()
        inner, messages = scan.inside(part, part.lower())
        messages += scan.stack[-1][1]
        if inner is not None:
            scan.open(inner, messages)
        if len(scan.stack) > DEPTH_LIMIT or messages > DEPTH_LIMIT:
            return _TOO_DEEP
    return None


@attrs.define
class _Scan:
    """Reads a message forwards: its delimiters, and the headers of its parts. No byte is read again for each part or level."""

    message: ByteSource
    at: int  # of the line end before what is read next
    # The open multiparts: their boundaries, and how many messages each is nested in.
    stack: list[tuple[bytes, int]] = attrs.field(factory=list, init=False)
    delimiters: Mapping[bytes, tuple[int, bool]] = attrs.field(factory=dict, init=False)
    _prefix: bytes = attrs.field(default=b"", init=False)
    _window: _Window = attrs.field(init=False, default=attrs.Factory(lambda self: _Window(self.message), takes_self=True))
    _headless: int = attrs.field(default=0, init=False)  # no header ends between `at` and here

    def open(self, boundary: bytes, messages: int) -> None:
        self.stack.append((boundary, messages))
        self._changed()

    def close(self, level: int) -> None:
        """Close all multiparts from this level on."""
        if level < len(self.stack):
            del self.stack[level:]
            self._changed()

    def _changed(self) -> None:
        boundaries = [boundary for boundary, _ in self.stack]
        self.delimiters, self._prefix = _delimiters(boundaries), _common_prefix(boundaries)

    def delimiter(self, end: int) -> bytes | None:
        """Moves to the next delimiter that begins before `end`; returns it without its two hyphens, or None if there is none."""
        at = self.at
        while (at := self._window.find(self._prefix, at, end)) >= 0:
            stop = self.message.find(b"\r\n", at + 4, at + 4 + _LINE)
            line = self.message[at + 4 : stop if stop >= 0 else at + 4 + _LINE].rstrip(b" \t")
            if line in self.delimiters:
                self.at = at
                return line
            at += 4
        return None

    def part_header(self) -> bytes:
        """Reads the header of the part whose delimiter ends here."""
        begin = self.message.find(b"\r\n", self.at, self.at + 200)
        if begin < 0:
            return b""
        self.at = begin
        return self._header()

    def _header(self) -> bytes:
        """Moves past the header that begins here, and returns it. Empty if it has no end, or if a delimiter ends the part before."""
        begin, limit = self.at, self.at + _HEAD_LIMIT
        end = self.message.find(b"\r\n\r\n", max(begin, self._headless), limit)
        self._headless = end if end >= 0 else max(self._headless, limit - 3)
        if end < 0:
            return b""
        if self._prefix and self.message.find(self._prefix, begin, end) >= 0 and self.delimiter(end) is not None:
            return b""
        self.at = end + 2
        return self.message[begin + 2 : end + 2]

    def inside(self, head: bytes, lower: bytes) -> tuple[bytes | None, int]:
        """Returns the boundary if an entity is a multipart, or a message (in a message …) that is one; and the number of these messages.

        `lower`: `head` in lower case. Moves past the headers of the messages.
        """
        depth = 0
        while depth <= DEPTH_LIMIT and lower.find(b"message/") >= 0 and _MESSAGE.search(lower):
            depth += 1
            head = self._header()
            lower = head.lower()
        return (_boundary(head, lower) if lower.find(b"multipart") >= 0 else None), depth


@attrs.define
class _Window:
    """Searches a message forwards, in a copy of a section of it, because searching a mapped file compares byte by byte.

    A section is copied once, however many matches it has.
    """

    message: ByteSource
    start: int = 0
    copy: bytes = b""

    def find(self, sub: bytes, at: int, end: int) -> int:
        """Returns the position of the next `sub` that is at or after `at` and ends at or before `end`, or -1."""
        while at < end:
            if not self.start <= at < self.start + len(self.copy) - len(sub):
                self.start, self.copy = at, self.message[at : at + _WINDOW + len(sub)]
            found: int = find(self.copy, sub, at - self.start, end - self.start)
            if found >= 0:
                return self.start + found
            if self.start + len(self.copy) >= end:
                return -1
            at = self.start + len(self.copy) - len(sub) + 1
        return -1


def common_beginning(texts: Sequence[bytes]) -> bytes:
    """Returns the longest common prefix."""
    if not texts:
        return b""
    first, last = min(texts), max(texts)
    if first == last:
        return first
    return first[: next((at for at, byte in enumerate(first) if last[at : at + 1] != bytes([byte])), len(first))]


def _delimiters(stack: list[bytes]) -> dict[bytes, tuple[int, bool]]:
    """Returns each delimiter without its two hyphens, with the level of its multipart and whether it closes it. Inner ones win."""
    delimiters: dict[bytes, tuple[int, bool]] = {}
    for level, boundary in enumerate(stack):
        delimiters[boundary + b"--"] = level, True
        delimiters[boundary] = level, False
    return delimiters


def _common_prefix(stack: list[bytes]) -> bytes:
    """Returns the line end and the beginning that all delimiters have in common. The longer it is, the faster the search."""
    return b"\r\n--" + common_beginning(stack)


def _boundary(head: bytes, lower: bytes) -> bytes | None:
    """Returns the boundary in the first Content-Type field with a multipart type."""
    field = _MULTIPART.search(lower)
    if field is None:
        return None
    end = _FIELD_END.search(head, field.end())
    found = _BOUNDARY.search(head[field.start(1) : len(head) if end is None else end.start()].replace(b"\r\n", b""))
    return (found[1] or found[2]).rstrip(b" ") if found else None
