"""What a process that delivers writes back to those that accept. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import attrs

from mailsvc.delivery.passing.frames import BadFrame

BEHIND, IN_TIME = b"1", b"0"
FILE_READ = b"f"  # after each frame with a section
_REFUSED, _REFUSED_BULK = b"r", b"b"
_SIZE = struct.Struct("!H")  # bytes of the destination that follows
_LONGEST = 0xFFFF


@attrs.frozen
class Refused:
    """There is no room for emails to this destination now: for `bulk` ones, or for all others."""

    destination: str
    bulk: bool

    @property
    def written(self) -> bytes:
        name = self.destination.encode()[:_LONGEST]
        return (_REFUSED_BULK if self.bulk else _REFUSED) + _SIZE.pack(len(name)) + name


@attrs.define(eq=False)
class ReplyReader:
    """Reads replies from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, data: bytes) -> Iterator[bytes | Refused]:
        """Yields BEHIND, IN_TIME, FILE_READ and what was refused, as far as they are complete. Raises BadFrame."""
        self._data += data
        at = 0
        while at < len(self._data):
            kind = bytes(self._data[at : at + 1])
            at += 1
            if kind in (_REFUSED, _REFUSED_BULK):
                name = at + _SIZE.size
                end = name + _SIZE.unpack_from(self._data, at)[0] if len(self._data) >= name else name + 1
                if len(self._data) < end:
                    at -= 1
                    break
                yield Refused(self._data[name:end].decode("utf-8", "replace"), kind == _REFUSED_BULK)
                at = end
            elif kind in (BEHIND, IN_TIME, FILE_READ):
                yield kind
            else:
                raise BadFrame(f"A reply of kind {kind!r} cannot be read.")
        del self._data[:at]
