"""A large message that has just been accepted: its bytes are still in the file that they arrived in. Postgres stores them as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import attrs

PIECE = 512 * 1024  # the maximum number of bytes that are read at once, and of one row of messages


@attrs.define(eq=False)
class Spooled:
    """A message: `prefix`, then the bytes of the file from `start` to `end`. The file disappears with its last reference."""

    prefix: bytes
    file: IO[bytes]
    start: int
    end: int
    in_file = True

    def __len__(self) -> int:
        return len(self.prefix) + self.end - self.start

    def __iter__(self) -> Iterator[bytes]:
        yield self.prefix
        for at in range(self.start, self.end, PIECE):
            yield os.pread(self.file.fileno(), min(PIECE, self.end - at), at)
