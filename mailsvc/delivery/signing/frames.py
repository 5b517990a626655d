"""What the daemon and its signing process write to each other: frames, each after its length. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import get_args

import attrs

from mailsvc.mail.authentication.dkim import Algorithm

READY = b"ready"  # the first frame from the child; each later one is a signature
_ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_LENGTH = struct.Struct("!I")
_KEY, _HASHES = b"k", b"h"  # the first byte of a frame to the child
_HEAD = struct.Struct("!IB")  # the number of a key, and its algorithm; the key follows
_HASH = struct.Struct("!I32s")  # the number of a key, and a SHA-256 hash


@attrs.frozen
class NewKey:
    """From now on, the key of this number is this one, as PKCS#8 DER."""

    number: int
    algorithm: Algorithm
    der: bytes = attrs.field(repr=False)


@attrs.frozen
class Hashes:
    """SHA-256 hashes to sign, each with the number of a key."""

    each: Sequence[tuple[int, bytes]]


def framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def written(frame: NewKey | Hashes) -> bytes:
    if isinstance(frame, NewKey):
        return framed(_KEY + _HEAD.pack(frame.number, _ALGORITHMS.index(frame.algorithm)) + frame.der)
    return framed(_HASHES + b"".join([_HASH.pack(number, digest) for number, digest in frame.each]))


def read(data: bytes) -> NewKey | Hashes:
    """What `written` has framed."""
    kind, content = data[:1], data[1:]
    if kind == _KEY:
        number, algorithm = _HEAD.unpack_from(content)
        return NewKey(number, _ALGORITHMS[algorithm], content[_HEAD.size :])
    return Hashes([*_HASH.iter_unpack(content)])


@attrs.define(eq=False)
class FrameReader:
    """Reads frames from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False, repr=False)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the frames that are complete, without their lengths."""
        self._data += data
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, at)
            end = at + _LENGTH.size + size
            if len(self._data) < end:
                break
            yield bytes(self._data[end - size : end])
            at = end
        del self._data[:at]
