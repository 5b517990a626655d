"""Message octets on their way to the wire: strict CRLF, dots doubled, one final dot (RFC 5321 §2.3.8, §4.5.2).

Takes the message in any slicing and remembers what crosses a cut. Reading a stuffed body back: smtp/framing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mailsvc.smtp.lineends import LineEnds

SLICE = 65536


class BareLineEnd(ValueError):
    """The message holds a CR without LF or an LF without CR; such octets never reach a connection."""


class Stuffer:
    """Stuffs one message. What `feed` returned so far, plus `end()`, is the body as DATA wants it."""

    __slots__ = ("_at_line_start", "_carry", "_ends")

    def __init__(self) -> None:
        self._ends = LineEnds()
        self._at_line_start = True
        self._carry = b""  # a CR that ended the last piece: its LF has to begin the next one

    def feed(self, piece: bytes) -> bytes:
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
        self._ends.look(piece)
        if not self._ends.clean:
            raise BareLineEnd("the message holds a bare CR or LF")
        # 5321 §4.5.2: a line that begins with a dot gets a second one. A cut may lie between the two octets.
        begins_with_dot = self._at_line_start and piece[0] == 46
        self._at_line_start = piece[-1] == 10
        stuffed = piece.replace(b"\r\n.", b"\r\n..")
        return b"." + stuffed if begins_with_dot else stuffed

    def end(self) -> bytes:
        """The end of the message: what is missing of its last line end, and the final dot."""
        if self._carry:
            raise BareLineEnd("the message ends in a bare CR")
        return b".\r\n" if self._at_line_start else b"\r\n.\r\n"


def slices(pieces: Iterable[bytes], size: int = SLICE) -> Iterator[tuple[bytes, bool]]:
    """The octets of `pieces` in slices of `size`, each with whether it is the last; the last one may be shorter or empty."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length <= size:
            continue
        joined = held[0] if len(held) == 1 else b"".join(held)
        start = 0
        while length - start > size:
            yield joined[start : start + size], False
            start += size
        held = [joined[start:]]
        length -= start
    yield held[0] if len(held) == 1 else b"".join(held), True


def stuffed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The whole body, final dot included."""
    stuffer = Stuffer()
    for piece in pieces:
        yield stuffer.feed(piece)
    yield stuffer.end()
