"""Codes a message for DATA (dot-stuffing) or BDAT, and checks that its lines end with CRLF (RFC 5321 §2.3.8).

Both take the message in any pieces and remember what crosses a boundary. The opposite direction: smtp/server/framing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from stringzilla import find

from mailsvc.smtp.line_ends import LineEnds

SLICE = 65536


class BareLineEnd(ValueError):
    """The message contains a CR without LF or an LF without CR. It is never sent."""


class Coding(ABC):
    """Codes one message: `feed` for each piece, then `end()`. Raises BareLineEnd."""

    __slots__ = ("_carry", "_ends")

    def __init__(self) -> None:
        self._ends = LineEnds()
        self._carry = b""  # a CR at the end of the last piece; the next piece has to begin with LF

    @abstractmethod
    def feed(self, piece: bytes) -> bytes: ...

    @abstractmethod
    def end(self) -> bytes: ...

    def _checked(self, piece: bytes) -> bytes:
        if self._carry:
            piece = self._carry + piece
            self._carry = b""
        if not piece:
            return b""
        if piece[-1] == 13:
            self._carry = b"\r"
            piece = piece[:-1]
            if not piece:
                return b""
        self._ends.inspect(piece)
        if not self._ends.clean:
            raise BareLineEnd("the message contains a bare CR or LF")
        return piece

    def _check_end(self) -> None:
        if self._carry:
            raise BareLineEnd("the message ends with a bare CR")


class BdatCoding(Coding):
    """For BDAT: one chunk, unchanged, of exactly the `size` in bytes that was announced (3030 §2)."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size

    def feed(self, piece: bytes) -> bytes:
        piece = self._checked(piece)
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError("the message is longer than announced")
        return piece

    def end(self) -> bytes:
        self._check_end()
        if self._left:
            raise ValueError("the message is shorter than announced")
        return b""


class DotStuffer(Coding):
    """For DATA: doubles dots at the start of lines, and ends with a single dot."""

    __slots__ = ("_at_line_start",)

    def __init__(self) -> None:
        super().__init__()
        self._at_line_start = True

    def feed(self, piece: bytes) -> bytes:
        piece = self._checked(piece)
        if not piece:
            return b""
        # 5321 §4.5.2: a line that begins with a dot gets a second one. A piece may begin with the dot.
        begins_with_dot = self._at_line_start and piece[0] == 46
        self._at_line_start = piece[-1] == 10
        stuffed = piece.replace(b"\r\n.", b"\r\n..") if find(piece, b"\r\n.") >= 0 else piece
        return b"." + stuffed if begins_with_dot else stuffed

    def end(self) -> bytes:
        """The final dot, after a line end if the message has none."""
        self._check_end()
        return b".\r\n" if self._at_line_start else b"\r\n.\r\n"


def slices(pieces: Iterable[bytes], size: int = SLICE) -> Iterator[tuple[bytes, bool]]:
    """`pieces` in slices of `size` bytes, each with whether it is the last. The last one may be shorter or empty."""
    held = b""
    for piece in pieces:  # may be the whole message: never copies more than a slice at once
        if len(held) + len(piece) <= size:
            held += piece
            continue
        start = size - len(held)
        yield held + piece[:start], False
        while len(piece) - start > size:
            yield piece[start : start + size], False
            start += size
        held = piece[start:]
    yield held, True


def stuffed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The whole body with its final dot."""
    stuffer = DotStuffer()
    for piece in pieces:
        yield stuffer.feed(piece)
    yield stuffer.end()
