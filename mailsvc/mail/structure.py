"""Checks how many parts a message has and how deeply they are nested (RFC 2046 §5.1), without decoding anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs
from stringzilla import find

DEPTH_LIMIT = 50
PARTS_LIMIT = 1000
_WINDOW = 256 * 1024  # bytes of a file that are searched at once; other threads wait meanwhile
_HEAD_LIMIT = 64 * 1024  # bytes of a part's header that are examined
_LINE = 1000  # bytes of a delimiter line that are examined
_BOUNDARY = re.compile(rb'\bboundary\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_MESSAGE = re.compile(rb"^content-type[ \t]*:\s*message/(?:rfc822|global)(?![\w-])", re.IGNORECASE | re.MULTILINE)
_NAME = b"content-type"
_COLON = re.compile(rb"[ \t]*+:")
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_TOO_DEEP = f"The parts of the message are nested more than {DEPTH_LIMIT} deep."


class ByteSource(Protocol):
    """Bytes, or a file that is mapped into memory."""

    def find(self, sub: bytes, start: int = ..., end: int = ..., /) -> int: ...
    def __getitem__(self, where: slice, /) -> bytes: ...
    def __len__(self) -> int: ...


def fault(head: bytes, message: ByteSource, start: int) -> str | None:
    """Returns why a message exceeds the limits, or None. `head` is its header block; its body begins at `start`."""
    boundary, messages = _boundary_inside(message, head, start)
    if messages > DEPTH_LIMIT:
        return _TOO_DEEP
    if boundary is None:
        return None
    # The open multiparts: their boundaries, and how many messages each is nested in.
    stack, depths, parts, at = [boundary], [messages], 0, start - 2
    delimiters, prefix = _delimiters(stack), _common_prefix(stack)
    window = _Window(message)
    while (at := window.find(prefix, at)) >= 0:
        end = message.find(b"\r\n", at + 4, at + 4 + _LINE)
        line = message[at + 4 : end if end >= 0 else at + 4 + _LINE].rstrip(b" \t")
        at += 4
        if line not in delimiters:
            continue
        level, closing = delimiters[line]
        still_open = level if closing else level + 1
        if not still_open:
            return None
        if still_open < len(stack):
            del stack[still_open:], depths[still_open:]
            delimiters, prefix = _delimiters(stack), _common_prefix(stack)
        if closing:
            continue
        parts += 1
        if parts > PARTS_LIMIT:
            return f"The message has more than {PARTS_LIMIT} parts."
        inner, messages = _boundary_inside(message, *_part_head(message, at + len(line)))
        if inner is not None:
            stack.append(inner)
            depths.append(depths[-1] + messages)
            delimiters, prefix = _delimiters(stack), _common_prefix(stack)
            messages = 0
        if len(stack) > DEPTH_LIMIT or depths[-1] + messages > DEPTH_LIMIT:
            return _TOO_DEEP
    return None


@attrs.define
class _Window:
    """Searches a message forwards, in a copy of a section of it, because searching a mapped file compares byte by byte.

    A section is copied once, however many matches it has.
    """

    message: ByteSource
    start: int = 0
    copy: bytes = b""

    def find(self, sub: bytes, at: int) -> int:
        """Returns the position of the next `sub` at or after `at`, or -1."""
        while at < len(self.message):
            if not self.start <= at < self.start + len(self.copy) - len(sub):
                self.start, self.copy = at, self.message[at : at + _WINDOW + len(sub)]
            found: int = find(self.copy, sub, at - self.start)
            if found >= 0:
                return self.start + found
            if self.start + len(self.copy) >= len(self.message):
                return -1
            at = self.start + len(self.copy) - len(sub) + 1
        return -1


def common_beginning(texts: Sequence[bytes]) -> bytes:
    """Returns the longest common prefix."""
    if not texts:
        return b""
    first, last = min(texts), max(texts)
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


def _part_head(message: ByteSource, at: int) -> tuple[bytes, int]:
    """Returns the header of the part whose delimiter line ends at `at`, and where its body begins."""
    begin = message.find(b"\r\n", at, at + 200)
    end = message.find(b"\r\n\r\n", begin, begin + _HEAD_LIMIT) if begin >= 0 else -1
    return (message[begin + 2 : end + 2], end + 4) if end >= 0 else (b"", 0)


def _boundary_inside(message: ByteSource, head: bytes, body: int) -> tuple[bytes | None, int]:
    """Returns the boundary if an entity is a multipart, or a message (in a message …) that is one; and the number of these messages."""
    depth, lower = 0, head.lower()
    while depth <= DEPTH_LIMIT and b"message/" in lower and _MESSAGE.search(head):
        depth += 1
        end = message.find(b"\r\n\r\n", body, body + _HEAD_LIMIT)
        if end < 0:
            return None, depth
        head, body = message[body : end + 2], end + 4
        lower = head.lower()
    return (_boundary(head, lower) if b"multipart" in lower else None), depth


def _boundary(head: bytes, lower: bytes) -> bytes | None:
    for value in _content_types(head, lower):
        if value.strip().lower().startswith(b"multipart"):
            found = _BOUNDARY.search(value.replace(b"\r\n", b""))
            return (found[1] or found[2]).rstrip(b" ") if found else None
    return None


def _content_types(head: bytes, lower: bytes) -> Iterator[bytes]:
    """Yields the values of all Content-Type fields, as header.parse_fields would return them."""
    at = lower.find(_NAME)
    while at >= 0:
        colon = _COLON.match(head, at + len(_NAME))
        if colon is not None and (at == 0 or head.startswith(b"\r\n", at - 2)):
            end = _FIELD_END.search(head, colon.end())
            yield head[colon.end() : len(head) if end is None else end.start()]
        at = lower.find(_NAME, at + len(_NAME))
