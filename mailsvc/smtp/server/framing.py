"""Inbound octets cut into command lines, DATA bodies and BDAT chunks. No I/O, no replies.

Only CRLF ends a line and only CRLF.CRLF ends a body (5321 §2.3.8, §4.1.1.4). What is wrong with a body is remembered
and told at its true end, so that what follows it is never taken for something else. However the octets are cut into
segments, the outcome is the same.
"""

from __future__ import annotations

from typing import Literal

import attrs

from mailsvc.smtp.line_ends import LineEnds

CRLF = b"\r\n"
COMMAND_LIMIT = 2048  # octets with CRLF; 512 and the additions of every extension that we offer come to less
RESPONSE_LIMIT = 12288 + 2  # a SASL response line, 4954 §4
TEXT_LINE = 1000  # octets with CRLF, 5321 §4.5.3.1.6
_END = b"\r\n.\r\n"

Fault = Literal["size", "nul", "bare_cr", "bare_lf", "line"]
# Of several faults the first of these is told.
PRECEDENCE: tuple[Fault, ...] = ("size", "nul", "bare_cr", "bare_lf", "line")


@attrs.frozen
class Overlong:
    """A command line over its limit: gone, counted, to be answered once."""

    octets: int


@attrs.define(eq=False)
class Inbox:
    """What has come in and is not yet taken."""

    _held: bytearray = attrs.field(factory=bytearray)
    _swallowed: int = 0  # octets of an over-long line that are already gone

    def __len__(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> None:
        self._held += data

    def line(self, limit: int = COMMAND_LIMIT) -> bytes | Overlong | None:
        """The next line without its CRLF, or None when it is not there yet."""
        if self._swallowed:
            return self._swallow()
        end = self._held.find(CRLF, 0, limit)
        if end >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 2]
            return line
        if len(self._held) < limit:
            return None
        return self._swallow()

    @property
    def swallowed(self) -> int:
        """How much of an unfinished over-long line has been thrown away so far."""
        return self._swallowed

    def _swallow(self) -> Overlong | None:
        end = self._held.find(CRLF)
        # The last octet may be the CR of the CRLF that ends the line.
        gone = end + 2 if end >= 0 else len(self._held) - self._held.endswith(b"\r")
        del self._held[:gone]
        self._swallowed += gone
        if end < 0:
            return None
        line, self._swallowed = Overlong(self._swallowed), 0
        return line

    def take(self, most: int | None = None) -> bytes:
        """Everything, or at most so many octets."""
        if most is None or most >= len(self._held):
            taken = bytes(self._held)
            self._held.clear()
            return taken
        taken = bytes(self._held[:most])
        del self._held[:most]
        return taken

    def give_back(self, data: bytes) -> None:
        self._held[:0] = data

    def clear(self) -> None:
        self._held.clear()
        self._swallowed = 0


@attrs.define(eq=False)
class Inspection:
    """Counts a body and remembers its faults, by search rather than by line."""

    limit: int
    size: int = 0
    _found: set[Fault] = attrs.field(factory=set)
    _ends: LineEnds = attrs.field(factory=LineEnds)
    _column: int = 0  # octets of the unfinished line
    _cr: bool = False  # the last octet was CR: what it means is not known yet

    def look(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self.limit:
            self._found.add("size")
        if not piece or "size" in self._found:
            return  # nothing has precedence over the size
        if self._cr:
            piece = b"\r" + piece
        self._cr = piece.endswith(b"\r")
        if self._cr:
            piece = piece[:-1]
        self._look_for_strays(piece)
        if "line" not in self._found:
            self._measure(piece)

    def end(self) -> Fault | None:
        """The fault to tell, None for a good body."""
        if self._cr:
            self._found.add("bare_cr")
        return self.fault

    @property
    def fault(self) -> Fault | None:
        """The fault to tell, as far as the body has been seen."""
        if not self._found:
            return None
        return next(fault for fault in PRECEDENCE if fault in self._found)

    @property
    def complete(self) -> bool:
        """Whether the body ends with CRLF, or is empty."""
        return self._column == 0 and not self._cr

    def _look_for_strays(self, piece: bytes) -> None:
        if b"\0" in piece:
            self._found.add("nul")
        self._ends.look(piece)
        if self._ends.bare_cr:
            self._found.add("bare_cr")
        if self._ends.bare_lf:
            self._found.add("bare_lf")

    def _measure(self, piece: bytes) -> None:
        start, room, end = 0, TEXT_LINE - self._column, len(piece)
        while end - start > room - 2:
            found = piece.rfind(CRLF, start, start + room)
            if found < 0:
                self._found.add("line")
                return
            start, room = found + 2, TEXT_LINE
        last = piece.rfind(CRLF, start)
        self._column = end - last - 2 if last >= 0 else TEXT_LINE - room + end - start


@attrs.define(eq=False)
class Dotted:
    """The body that follows 354: unstuffed (5321 §4.5.2) up to its end."""

    inspection: Inspection
    rest: bytes | None = None  # what followed the end; None: the end has not come
    # What may become the end or a stuffed dot. The body starts like a line, as if after a CRLF.
    _held: bytes = CRLF
    _virtual: int = 2  # octets of that CRLF that are no part of the body

    def feed(self, data: bytes) -> bytes:
        """The octets of the body that are certain now."""
        data = self._held + data
        first = data.find(b".")  # one octet is found much faster than three, and base64 has none
        dots = data.find(b"\r\n.", max(0, first - 2)) if first >= 0 else -1
        end = data.find(_END, dots) if dots >= 0 else -1
        if end >= 0:
            cut, self._held, self.rest = end + 2, b"", data[end + 5 :]
        else:
            cut = len(data) - _begun(data)
            self._held = data[cut:]
        if not cut:
            return b""
        if 0 <= dots < cut - 2:  # else there is nothing to unstuff, as in most segments
            data = data[:cut].replace(b"\r\n.", CRLF)
            cut = len(data)
        piece, self._virtual = data[self._virtual : cut], 0
        self.inspection.look(piece)
        return piece


def _begun(data: bytes) -> int:
    """How many of the last octets of `data` may be the beginning of the end."""
    for length in (4, 3, 2, 1):
        if data.endswith(_END[:length]):
            return length
    return 0


@attrs.define(eq=False)
class Chunk:
    """The counted octets of one BDAT (3030 §2)."""

    left: int

    def take(self, inbox: Inbox) -> bytes:
        piece = inbox.take(self.left)
        self.left -= len(piece)
        return piece
