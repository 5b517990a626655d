"""How deep and how many the parts of a message are (RFC 2046 §5.1), found by search and without decoding anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

DEPTH_LIMIT = 50
PARTS_LIMIT = 1000
_WINDOW = 256 * 1024  # octets of a file that are searched at once: other threads wait meanwhile
_HEAD_LIMIT = 64 * 1024  # octets of a part's header that are looked at
_LINE = 1000  # octets of a delimiter line that are looked at
_BOUNDARY = re.compile(rb'\bboundary\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_MESSAGE = re.compile(rb"^content-type[ \t]*:\s*message/(?:rfc822|global)(?![\w-])", re.IGNORECASE | re.MULTILINE)
_NAME = b"content-type"
_COLON = re.compile(rb"[ \t]*+:")
_FIELD_END = re.compile(rb"\r\n(?![ \t])")
_TOO_DEEP = f"The parts of the message are nested more than {DEPTH_LIMIT} deep."


class Octets(Protocol):
    """bytes, or a file that is mapped into memory."""

    def find(self, sub: bytes, start: int = ..., end: int = ..., /) -> int: ...
    def __getitem__(self, where: slice, /) -> bytes: ...
    def __len__(self) -> int: ...


def fault(head: bytes, message: Octets, start: int) -> str | None:
    """Why the message, whose header block is `head` and whose body begins at `start`, has more structure than anybody reads."""
    boundary, messages = _within(message, head, start)
    if messages > DEPTH_LIMIT:
        return _TOO_DEEP
    if boundary is None:
        return None
    stack, around, parts, at = [boundary], [messages], 0, start - 2  # multiparts, and how many messages each stands in
    known, begin = _lines(stack), _beginning(stack)
    window = _Window(message)
    while (at := window.find(begin, at)) >= 0:
        end = message.find(b"\r\n", at + 4, at + 4 + _LINE)
        line = message[at + 4 : end if end >= 0 else at + 4 + _LINE].rstrip(b" \t")
        at += 4
        if line not in known:
            continue
        level, closing = known[line]
        open_ones = level if closing else level + 1
        if not open_ones:
            return None
        if open_ones < len(stack):
            del stack[open_ones:], around[open_ones:]
            known, begin = _lines(stack), _beginning(stack)
        if closing:
            continue
        parts += 1
        if parts > PARTS_LIMIT:
            return f"The message has more than {PARTS_LIMIT} parts."
        inner, messages = _within(message, *_part_head(message, at + len(line)))
        if inner is not None:
            stack.append(inner)
            around.append(around[-1] + messages)
            known, begin = _lines(stack), _beginning(stack)
            messages = 0
        if len(stack) > DEPTH_LIMIT or around[-1] + messages > DEPTH_LIMIT:
            return _TOO_DEEP
    return None


@attrs.define
class _Window:
    """Searches a message forwards, in copies of a part of it: the search of a mapped file compares octet by octet.

    A copy serves until it is searched to its end, however many times something is found in it.
    """

    message: Octets
    start: int = 0
    copy: bytes = b""

    def find(self, sub: bytes, at: int) -> int:
        """Where `sub` is next, at `at` or behind it."""
        while at < len(self.message):
            if not self.start <= at < self.start + len(self.copy) - len(sub):
                self.start, self.copy = at, self.message[at : at + _WINDOW + len(sub)]
            found = self.copy.find(sub, at - self.start)
            if found >= 0:
                return self.start + found
            if self.start + len(self.copy) >= len(self.message):
                return -1
            at = self.start + len(self.copy) - len(sub) + 1
        return -1


def common_beginning(texts: Sequence[bytes]) -> bytes:
    """The longest text that all of these begin with."""
    if not texts:
        return b""
    first, last = min(texts), max(texts)
    return first[: next((at for at, octet in enumerate(first) if last[at : at + 1] != bytes([octet])), len(first))]


def _lines(stack: list[bytes]) -> dict[bytes, tuple[int, bool]]:
    """What may stand behind the two hyphens of a delimiter: of which multipart it is, the inner ones first, and whether it is its last."""
    known: dict[bytes, tuple[int, bool]] = {}
    for level, boundary in enumerate(stack):
        known[boundary + b"--"] = level, True
        known[boundary] = level, False
    return known


def _beginning(stack: list[bytes]) -> bytes:
    """What all of their delimiters begin with, and the line end before it. What is longer is found faster."""
    return b"\r\n--" + common_beginning(stack)


def _part_head(message: Octets, at: int) -> tuple[bytes, int]:
    """The header of the part whose delimiter line ends at `at`, and where its body begins."""
    begin = message.find(b"\r\n", at, at + 200)
    end = message.find(b"\r\n\r\n", begin, begin + _HEAD_LIMIT) if begin >= 0 else -1
    return (message[begin + 2 : end + 2], end + 4) if end >= 0 else (b"", 0)


def _within(message: Octets, head: bytes, body: int) -> tuple[bytes | None, int]:
    """The boundary of what an entity is, behind the messages that it is, one in the other; and how many these are."""
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
    """The values of the fields of that name, as header.parse_fields would give them."""
    at = lower.find(_NAME)
    while at >= 0:
        colon = _COLON.match(head, at + len(_NAME))
        if colon is not None and (at == 0 or head.startswith(b"\r\n", at - 2)):
            end = _FIELD_END.search(head, colon.end())
            yield head[colon.end() : len(head) if end is None else end.start()]
        at = lower.find(_NAME, at + len(_NAME))
