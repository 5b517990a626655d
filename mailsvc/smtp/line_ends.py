"""Checks that lines end with CRLF only (RFC 5321 §2.3.8), in every byte that is received or sent."""

from __future__ import annotations

from io import IncrementalNewlineDecoder

from stringzilla import translate

_CR, _LF = (bytes(byte == end for byte in range(256)) for end in b"\r\n")


class LineEnds:
    """Takes data in pieces. A CR at the end of a piece is bare: callers hold the last one back until they know the next byte."""

    __slots__ = ("bare_cr", "bare_lf")

    def __init__(self) -> None:
        self.bare_cr = self.bare_lf = False

    def inspect(self, piece: bytes) -> None:
        # The places of CRs, as bytes of 0 and 1, must be those before the LFs.
        if b"\0" + translate(piece, _CR) == translate(piece, _LF) + b"\0":
            return
        decoder = IncrementalNewlineDecoder(None, translate=False)  # records each kind of line end that it meets
        decoder.decode(piece.decode("latin-1"), final=True)
        kinds = decoder.newlines or ()
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        self.bare_cr |= "\r" in kinds
        self.bare_lf |= "\n" in kinds

    @property
    def clean(self) -> bool:
        return not (self.bare_cr or self.bare_lf)
