"""How deep and how many the parts of a message are (RFC 2046 §5.1), found by search and without decoding anything."""

from __future__ import annotations

import re
from typing import Protocol

from mailsvc.mail import header

DEPTH_LIMIT = 50
PARTS_LIMIT = 1000
_WINDOW = 1024 * 1024  # octets searched at once: other threads wait meanwhile
_HEAD_LIMIT = 64 * 1024  # octets of a part's header that are looked at
_BOUNDARY = re.compile(rb'\bboundary\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_MESSAGE = re.compile(rb"^content-type[ \t]*:\s*message/(?:rfc822|global)(?![\w-])", re.IGNORECASE | re.MULTILINE)
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
    known = _lines(stack)
    while (at := _delimiter(message, at)) >= 0:
        line = message[at + 4 : at + 4 + 1000].partition(b"\r\n")[0].rstrip(b" \t")
        at += 4
        if line not in known:
            continue
        level = next(n for n in range(len(stack) - 1, -1, -1) if line in (stack[n], stack[n] + b"--"))
        closing = line != stack[level]
        del stack[level if closing else level + 1 :], around[level if closing else level + 1 :]
        known = _lines(stack)
        if closing:
            if not stack:
                return None
            continue
        parts += 1
        if parts > PARTS_LIMIT:
            return f"The message has more than {PARTS_LIMIT} parts."
        inner, messages = _within(message, *_part_head(message, at + len(line)))
        if inner is not None:
            stack.append(inner)
            around.append(around[-1] + messages)
            known = _lines(stack)
        if max(len(stack), around[-1] + (messages if inner is None else 0)) > DEPTH_LIMIT:
            return _TOO_DEEP
    return None


def _delimiter(message: Octets, start: int) -> int:
    """Where the next line that begins like a delimiter is, with the line end before it."""
    for at in range(start, len(message), _WINDOW):
        found = message.find(b"\r\n--", at, at + _WINDOW + 3)
        if found >= 0:
            return found
    return -1


def _lines(stack: list[bytes]) -> frozenset[bytes]:
    """What may stand behind the two hyphens of a delimiter."""
    return frozenset(stack) | {boundary + b"--" for boundary in stack}


def _part_head(message: Octets, at: int) -> tuple[bytes, int]:
    """The header of the part whose delimiter line ends at `at`, and where its body begins."""
    begin = message.find(b"\r\n", at, at + 200)
    end = message.find(b"\r\n\r\n", begin, begin + _HEAD_LIMIT) if begin >= 0 else -1
    return (message[begin + 2 : end + 2], end + 4) if end >= 0 else (b"", 0)


def _within(message: Octets, head: bytes, body: int) -> tuple[bytes | None, int]:
    """The boundary of what an entity is, behind the messages that it is, one in the other; and how many these are."""
    depth = 0
    while depth <= DEPTH_LIMIT and _MESSAGE.search(head):
        depth += 1
        end = message.find(b"\r\n\r\n", body, body + _HEAD_LIMIT)
        if end < 0:
            return None, depth
        head, body = message[body : end + 2], end + 4
    return _boundary(head), depth


def _boundary(head: bytes) -> bytes | None:
    if b"multipart" not in head.lower():
        return None
    for field in header.parse_fields(head, strict=False):
        if field.name.lower() == "content-type" and field.raw.strip().lower().startswith(b"multipart"):
            found = _BOUNDARY.search(field.raw.replace(b"\r\n", b""))
            return (found[1] or found[2]).rstrip(b" ") if found else None
    return None
