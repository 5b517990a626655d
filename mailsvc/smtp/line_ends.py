"""Whether octets end their lines with CRLF alone (RFC 5321 §2.3.8), in one pass: it is asked of every octet that comes in or goes out."""

from __future__ import annotations

from io import IncrementalNewlineDecoder


class LineEnds:
    """Hand in the octets in any pieces, but none that ends in CR: what such a CR is can only be told with what follows it."""

    __slots__ = ("_decoder", "bare_cr", "bare_lf")

    def __init__(self) -> None:
        self.bare_cr = self.bare_lf = False
        # What universal newlines are read with notes each kind that it meets. Four times as fast as counting CRs, LFs and pairs.
        self._decoder = IncrementalNewlineDecoder(None, translate=False)

    def look(self, piece: bytes) -> None:
        self._decoder.decode(piece.decode("latin-1"))
        kinds = self._decoder.newlines
        if kinds is not None and kinds != "\r\n":
            kinds = (kinds,) if isinstance(kinds, str) else kinds
            self.bare_cr, self.bare_lf = "\r" in kinds, "\n" in kinds

    @property
    def clean(self) -> bool:
        return not (self.bare_cr or self.bare_lf)
