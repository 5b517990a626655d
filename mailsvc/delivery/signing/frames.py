"""What the daemon and its signing process write to each other. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import get_args

import attrs

from mailsvc.mail.authentication.dkim import Algorithm

READY = b"ready"  # the first bytes from the child
_ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_HEAD = struct.Struct("!BI")  # the kind of a frame, and the length of the rest
_KEY = struct.Struct("!IB")  # the number of a key, and its algorithm; the key follows
_HASH = struct.Struct("!I32s")  # the number of a key, and a SHA-256 hash
_SIGNATURE = struct.Struct("!H")  # the length of a signature, which follows


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


def written(frame: NewKey | Hashes) -> bytes:
    if isinstance(frame, NewKey):
        data = _KEY.pack(frame.number, _ALGORITHMS.index(frame.algorithm)) + frame.der
        return _HEAD.pack(0, len(data)) + data
    data = b"".join([_HASH.pack(number, digest) for number, digest in frame.each])
    return _HEAD.pack(1, len(data)) + data


@attrs.define(eq=False)
class FrameReader:
    """Reads frames from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False, repr=False)

    def feed(self, data: bytes) -> Iterator[NewKey | Hashes]:
        """Yields the frames that are complete."""
        self._data += data
        at = 0
        while len(self._data) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._data, at)
            end = at + _HEAD.size + size
            if len(self._data) < end:
                break
            yield _frame(kind, bytes(self._data[end - size : end]))
            at = end
        del self._data[:at]


def _frame(kind: int, data: bytes) -> NewKey | Hashes:
    if kind == 0:
        number, algorithm = _KEY.unpack_from(data)
        return NewKey(number, _ALGORITHMS[algorithm], data[_KEY.size :])
    return Hashes([*_HASH.iter_unpack(data)])


def answered(signatures: Sequence[bytes]) -> bytes:
    return b"".join([_SIGNATURE.pack(len(each)) + each for each in signatures])


@attrs.define(eq=False)
class SignatureReader:
    """Reads signatures from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False, repr=False)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the signatures that are complete."""
        self._data += data
        at = 0
        while len(self._data) - at >= _SIGNATURE.size:
            (size,) = _SIGNATURE.unpack_from(self._data, at)
            end = at + _SIGNATURE.size + size
            if len(self._data) < end:
                break
            yield bytes(self._data[end - size : end])
            at = end
        del self._data[:at]
