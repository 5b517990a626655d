"""Parses a server's replies (RFC 5321 §4.2) from data in any pieces. No transport, no clock.

A line ends with LF, with or without CR, since nothing can be smuggled in this direction. A reply whose lines have different codes is
rejected, and every size is limited. For an incomplete reply, `begun` returns what has arrived of it.
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from mailsvc.mail.reply import Reply, split_enhanced

LINE_LIMIT = 4096  # bytes of one line; 5321 §4.5.3.1.5 requires 512
LINES_LIMIT = 100  # lines of one reply
REPLY_LIMIT = 65536  # bytes of one reply
TEXT_LIMIT = 4096  # characters kept of a refusal, because it may be stored for each of many recipients

_CODES = {b"%d" % code: code for code in range(200, 600)}
# Control characters must not reach a log, a page or a database column. A tab is harmless.
_CONTROLS = {code: "\ufffd" for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029] if code != 9}


class BadReply(ValueError):
    """The data is not an SMTP reply. The text says why, without quoting it."""


@attrs.frozen
class Answer:
    """A reply, and its lines as received (decoded, joined by newlines) for the transcript."""

    reply: Reply
    raw: str


class ReplyReader:
    """Collects data and returns replies one at a time."""

    __slots__ = ("_buffer", "_lines", "_size")

    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[str] = []
        self._size = 0

    @property
    def pending(self) -> bool:
        """Whether there is data that is not part of a complete reply."""
        return bool(self._buffer or self._lines)

    def begun(self) -> Answer | None:
        """The part of an incomplete reply that has arrived, if its code is known; all lines have the same one (5321 §4.2.1)."""
        lines = self._lines[:LINES_LIMIT]
        if not lines:
            line = self._buffer[:LINE_LIMIT]
            if line[:3] not in _CODES or line[3:4] not in (b" ", b"-"):
                return None
            lines = [_read(line.rstrip(b"\r"))[1]]
        return _joined(int(lines[0][:3]), lines)

    def push(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data

    def next(self) -> Answer | None:
        """The next complete reply; None if more data is needed. Raises BadReply if it can never be complete."""
        while (end := self._buffer.find(b"\n", 0, LINE_LIMIT + 1)) >= 0:
            line = self._buffer[:end]
            self._buffer = self._buffer[end + 1 :]
            try:
                answer = self._line(line[:-1] if line.endswith(b"\r") else line)
            except BadReply:
                self._buffer = b""  # what follows may still belong to the bad reply
                raise
            if answer is not None:
                return answer
        if len(self._buffer) > LINE_LIMIT:
            raise BadReply(f"a reply line longer than {LINE_LIMIT} bytes")
        return None

    def _line(self, line: bytes) -> Answer | None:
        lines, separator = self._lines, line[3:4]
        if not lines and separator != b"-":
            return _single(line)
        code, text = _read(line)
        if lines and lines[0][:3] != text[:3]:  # 5321 §4.2.1: the code is the same on every line
            raise BadReply("a reply with different codes")
        lines.append(text)
        self._size += len(line)
        if len(lines) > LINES_LIMIT or self._size > REPLY_LIMIT:
            raise BadReply(f"a reply longer than {LINES_LIMIT} lines or {REPLY_LIMIT} bytes")
        if separator == b"-":
            return None
        self._lines, self._size = [], 0
        return _joined(code, lines)


def _read(line: bytes) -> tuple[int, str]:
    """The code, and the whole line as text."""
    code = _CODES.get(line[:3])
    if code is None or line[3:4] not in (b" ", b"-", b""):
        raise BadReply("a line that is not an SMTP reply")
    text = line.decode("utf-8", "backslashreplace")
    return code, text if text.isprintable() else text.translate(_CONTROLS)


@lru_cache(256)  # hot path: a server's replies to MAIL, RCPT and DATA repeat
def _single(line: bytes) -> Answer:
    code, text = _read(line)
    enhanced, rest = split_enhanced(code, text[4:])
    return Answer(Reply(code, rest, enhanced), text)


def _joined(code: int, lines: list[str]) -> Answer:
    """One reply of several lines. RFC 2034 §4: the enhanced code is repeated on each line; a different one is left in the text."""
    enhanced, first = split_enhanced(code, lines[0][4:])
    texts = [first]
    for line in lines[1:]:
        same, text = split_enhanced(code, line[4:])
        texts.append(text if same is not None and same == enhanced else line[4:])
    text = "\n".join(texts)
    return Answer(Reply(code, text if code < 400 else text[:TEXT_LIMIT], enhanced), "\n".join(lines))
