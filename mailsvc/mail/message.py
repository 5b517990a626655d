"""The bytes of a message, handed on in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

PIECE = 256 * 1000


@attrs.frozen
class Message:
    """One RFC 5322 message. `len()` is its octets, iterating gives them in slices of at most 256 kB."""

    octets: bytes = attrs.field(repr=False)

    def __len__(self) -> int:
        return len(self.octets)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.octets), PIECE):
            yield self.octets[start : start + PIECE]

    def __bytes__(self) -> bytes:
        return self.octets
