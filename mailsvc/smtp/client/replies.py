"""Replies as they come off a connection: octets in any chunking → complete replies (RFC 5321 §4.2). No transport, no clock.

Decided here: a line ends at LF, with or without a CR before it, since nothing can be smuggled in that direction; a reply whose
lines carry different codes is refused; every size is capped. Where a reply never ends, `begun` gives the code of its first line.
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from mailsvc.mail.reply import Reply, split_enhanced

LINE_LIMIT = 4096  # octets of one line; 5321 §4.5.3.1.5 asks for 512
LINES_LIMIT = 100  # lines of one reply
REPLY_LIMIT = 65536  # octets of one reply
TEXT_LIMIT = 4096  # characters kept of a refusal, which may be kept for each of many recipients

_CODES = {b"%d" % code: code for code in range(200, 600)}
# What must not reach a log, a page or a database column; a tab is harmless.
_CONTROLS = {code: "\ufffd" for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029] if code != 9}


class BadReply(ValueError):
    """What came is no SMTP reply. The text says why, and quotes nothing."""


@attrs.frozen
class Answer:
    """A reply, and its lines as they came (decoded, joined by newlines) for the transcript."""

    reply: Reply
    raw: str


class ReplyReader:
    """Collects octets; hands out replies one at a time."""

    __slots__ = ("_buffer", "_lines", "_size")

    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[str] = []
        self._size = 0

    @property
    def pending(self) -> bool:
        """Whether octets lie here that no reply has been made of."""
        return bool(self._buffer or self._lines)

    def begun(self) -> Answer | None:
        """The part of an unfinished reply that has arrived, if its code is known: all lines have the same one (5321 §4.2.1)."""
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
        """The next complete reply; None when more octets are needed; BadReply when it cannot become one."""
        while (end := self._buffer.find(b"\n", 0, LINE_LIMIT + 1)) >= 0:
            line = self._buffer[:end]
            self._buffer = self._buffer[end + 1 :]
            try:
                answer = self._line(line[:-1] if line.endswith(b"\r") else line)
            except BadReply:
                self._buffer = b""  # what follows cannot be told apart from the rest of the bad reply
                raise
            if answer is not None:
                return answer
        if len(self._buffer) > LINE_LIMIT:
            raise BadReply(f"a reply line of more than {LINE_LIMIT} octets")
        return None

    def _line(self, line: bytes) -> Answer | None:
        lines, separator = self._lines, line[3:4]
        if not lines and separator != b"-":
            return _single(line)
        code, text = _read(line)
        if lines and lines[0][:3] != text[:3]:  # 5321 §4.2.1: the code is the same on every line
            raise BadReply("different codes in one reply")
        lines.append(text)
        self._size += len(line)
        if len(lines) > LINES_LIMIT or self._size > REPLY_LIMIT:
            raise BadReply(f"a reply of more than {LINES_LIMIT} lines or {REPLY_LIMIT} octets")
        if separator == b"-":
            return None
        self._lines, self._size = [], 0
        return _joined(code, lines)


def _read(line: bytes) -> tuple[int, str]:
    """The code, and the whole line as text."""
    code = _CODES.get(line[:3])
    if code is None or line[3:4] not in (b" ", b"-", b""):
        raise BadReply("a line that is no SMTP reply")
    text = line.decode("utf-8", "backslashreplace")
    return code, text if text.isprintable() else text.translate(_CONTROLS)


@lru_cache(256)  # a server says the same to every MAIL, RCPT and DATA
def _single(line: bytes) -> Answer:
    code, text = _read(line)
    enhanced, rest = split_enhanced(code, text[4:])
    return Answer(Reply(code, rest, enhanced), text)


def _joined(code: int, lines: list[str]) -> Answer:
    """One reply of several lines. RFC 2034 §4: the enhanced code is repeated on each; one that differs stays text."""
    enhanced, first = split_enhanced(code, lines[0][4:])
    texts = [first]
    for line in lines[1:]:
        same, text = split_enhanced(code, line[4:])
        texts.append(text if same is not None and same == enhanced else line[4:])
    text = "\n".join(texts)
    return Answer(Reply(code, text if code < 400 else text[:TEXT_LIMIT], enhanced), "\n".join(lines))
