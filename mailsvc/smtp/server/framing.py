"""Splits incoming bytes into command lines, DATA bodies and BDAT chunks. No I/O, no replies.

Only CRLF ends a line and only CRLF.CRLF ends a body (5321 §2.3.8, §4.1.1.4). Faults of a body are reported at its true end, so
that the rest of a faulty body is never taken for commands. The result does not depend on how the bytes are cut into segments.
"""

from __future__ import annotations

from typing import Literal

import attrs
from stringzilla import find

from mailsvc.smtp.line_ends import LineEnds

CRLF = b"\r\n"
COMMAND_LIMIT = 2048  # bytes with CRLF; more than 512 and the additions of all extensions that are offered
RESPONSE_LIMIT = 12288 + 2  # a SASL response line, 4954 §4
TEXT_LINE = 1000  # bytes with CRLF, 5321 §4.5.3.1.6
_END = b"\r\n.\r\n"

Fault = Literal["size", "nul", "bare_cr", "bare_lf", "line"]
# Of several faults, the first of these is reported.
PRECEDENCE: tuple[Fault, ...] = ("size", "nul", "bare_cr", "bare_lf", "line")


@attrs.frozen
class Overlong:
    """A command line over the limit, of which only the size was kept. It gets one reply."""

    size: int


@attrs.define(eq=False)
class InputBuffer:
    """Bytes that have arrived and were not read yet."""

    _held: bytearray = attrs.field(factory=bytearray)
    _discarded: int = 0  # bytes of an overlong line

    def __len__(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> None:
        self._held += data

    def line(self, limit: int = COMMAND_LIMIT) -> bytes | Overlong | None:
        """The next line without its CRLF, or None if it is not complete."""
        if self._discarded:
            return self._discard()
        end = self._held.find(CRLF, 0, limit)
        if end >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 2]
            return line
        if len(self._held) < limit:
            return None
        return self._discard()

    @property
    def discarded(self) -> int:
        """How many bytes of an incomplete overlong line were discarded so far."""
        return self._discarded

    def _discard(self) -> Overlong | None:
        end = self._held.find(CRLF)
        # The last byte may be the CR of the CRLF that ends the line.
        size = end + 2 if end >= 0 else len(self._held) - self._held.endswith(b"\r")
        del self._held[:size]
        self._discarded += size
        if end < 0:
            return None
        line, self._discarded = Overlong(self._discarded), 0
        return line

    def take(self, limit: int | None = None) -> bytes:
        """Everything, or at most `limit` bytes."""
        if limit is None or limit >= len(self._held):
            taken = bytes(self._held)
            self._held.clear()
            return taken
        taken = bytes(self._held[:limit])
        del self._held[:limit]
        return taken

    def give_back(self, data: bytes) -> None:
        self._held[:0] = data

    def clear(self) -> None:
        self._held.clear()
        self._discarded = 0


@attrs.define(eq=False)
class Inspection:
    """Counts the bytes of a body and finds its faults, by searching rather than line by line."""

    limit: int
    size: int = 0
    _found: set[Fault] = attrs.field(factory=set)
    _ends: LineEnds = attrs.field(factory=LineEnds)
    _column: int = 0  # bytes of the incomplete line
    _cr: bool = False  # the last byte was CR: whether LF follows is not known yet

    def inspect(self, piece: bytes) -> None:
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
        self._find_bad_bytes(piece)
        if "line" not in self._found:
            self._measure(piece)

    def end(self) -> Fault | None:
        """The fault of the complete body; None: it has none."""
        if self._cr:
            self._found.add("bare_cr")
        return self.fault

    @property
    def fault(self) -> Fault | None:
        """The fault of the body as far as it was inspected."""
        if not self._found:
            return None
        return next(fault for fault in PRECEDENCE if fault in self._found)

    @property
    def complete(self) -> bool:
        """Whether the body ends with CRLF, or is empty."""
        return self._column == 0 and not self._cr

    def _find_bad_bytes(self, piece: bytes) -> None:
        if 0 in piece:
            self._found.add("nul")
        self._ends.inspect(piece)
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
class DotDecoder:
    """Removes dot-stuffing (5321 §4.5.2) from the body that follows 354, and finds its end."""

    inspection: Inspection
    rest: bytes | None = None  # what follows the end; None: the end was not found yet
    # What may become the end or a stuffed dot. A body begins as if a CRLF came before it.
    _held: bytes = CRLF
    _virtual: int = 2  # bytes of that CRLF, which are not part of the body

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body that are known to belong to it."""
        data = self._held + data
        dots = find(data, b"\r\n.")
        end = find(data, _END, dots) if dots >= 0 else -1
        if end >= 0:
            cut, self._held, self.rest = end + 2, b"", data[end + 5 :]
        else:
            cut = len(data) - _partial_end(data)
            self._held = data[cut:]
        if not cut:
            return b""
        if 0 <= dots < cut - 2:  # most segments have no stuffed dot
            data = data[:cut].replace(b"\r\n.", CRLF)
            cut = len(data)
        piece, self._virtual = data[self._virtual : cut], 0
        self.inspection.inspect(piece)
        return piece


def _partial_end(data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of CRLF.CRLF."""
    for length in (4, 3, 2, 1):
        if data.endswith(_END[:length]):
            return length
    return 0


@attrs.define(eq=False)
class Chunk:
    """The bytes of one BDAT that are still to come (3030 §2)."""

    left: int

    def take(self, incoming: InputBuffer) -> bytes:
        piece = incoming.take(self.left)
        self.left -= len(piece)
        return piece
