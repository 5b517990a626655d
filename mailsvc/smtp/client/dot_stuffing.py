"""Message octets on their way to the wire: strict CRLF (RFC 5321 §2.3.8), as DATA wants them or as BDAT does.

Either takes the message in any slicing and remembers what crosses a cut. Reading bodies back: smtp/server/framing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from mailsvc.smtp.line_ends import LineEnds

SLICE = 65536


class BareLineEnd(ValueError):
    """The message holds a CR without LF or an LF without CR; such octets never reach a connection."""


class Coding(ABC):
    """How one message is written: what `feed` makes of its pieces, then `end()`. Raises BareLineEnd."""

    __slots__ = ("_carry", "_ends")

    def __init__(self) -> None:
        self._ends = LineEnds()
        self._carry = b""  # a CR that ended the last piece: its LF has to begin the next one

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
            raise BareLineEnd("the message holds a bare CR or LF")
        return piece

    def _look_back(self) -> None:
        if self._carry:
            raise BareLineEnd("the message ends in a bare CR")


class Chunk(Coding):
    """As the one chunk of `size` octets that BDAT announced (3030 §2): as it is, and never another number of octets."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size

    def feed(self, piece: bytes) -> bytes:
        piece = self._checked(piece)
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError("the message is longer than was said")
        return piece

    def end(self) -> bytes:
        self._look_back()
        if self._left:
            raise ValueError("the message is shorter than was said")
        return b""


class DotStuffer(Coding):
    """As DATA wants it: dots doubled, one final dot."""

    __slots__ = ("_at_line_start",)

    def __init__(self) -> None:
        super().__init__()
        self._at_line_start = True

    def feed(self, piece: bytes) -> bytes:
        piece = self._checked(piece)
        if not piece:
            return b""
        # 5321 §4.5.2: a line that begins with a dot gets a second one. A cut may lie between the two octets.
        begins_with_dot = self._at_line_start and piece[0] == 46
        self._at_line_start = piece[-1] == 10
        stuffed = piece.replace(b"\r\n.", b"\r\n..") if b"." in piece else piece  # base64 has none
        return b"." + stuffed if begins_with_dot else stuffed

    def end(self) -> bytes:
        """The end of the message: what is missing of its last line end, and the final dot."""
        self._look_back()
        return b".\r\n" if self._at_line_start else b"\r\n.\r\n"


def slices(pieces: Iterable[bytes], size: int = SLICE) -> Iterator[tuple[bytes, bool]]:
    """The octets of `pieces` in slices of `size`, each with whether it is the last; the last one may be shorter or empty."""
    held = b""
    for piece in pieces:  # one of them may be the whole message: no more of it is copied at once than a slice
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
    """The whole body, final dot included."""
    stuffer = DotStuffer()
    for piece in pieces:
        yield stuffer.feed(piece)
    yield stuffer.end()
