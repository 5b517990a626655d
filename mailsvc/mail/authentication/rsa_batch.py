"""RSA signatures of several messages in one call: PKCS #1 v1.5 with SHA-256 (RFC 8017 §8.2.1), on up to eight vector lanes.

Eight take little longer than two that are made one after the other. This needs a processor with AVX-512 IFMA and libcrypto_mb of Intel's
Cryptography Primitives Library (the extra `avx512`). Without them, `available` is False. What is signed, and when one signature at a time
is faster, is decided in dkim. The reasons: docs/decisions/rsa-batches.md.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
from cryptography.hazmat.primitives.asymmetric import rsa

LANES = 8
_BITS = (1024, 2048, 3072, 4096)  # the key sizes of libcrypto_mb
_EXPONENT = 65537
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")  # 8017 §9.2, note 1
_ALIGNMENT = 64
_PACKAGES = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libcrypto_mb.so")  # each needs those before it

_Lanes = c_void_p * LANES
_Functions = dict[str, tuple[Any, tuple[Any, ...]]]
_FUNCTIONS: _Functions = {
    "mbx_is_crypto_mb_applicable": (c_int, (c_int64,)),
    "mbx_RSA_private_crt_Method": (c_void_p, (c_int,)),
    "mbx_RSA_pub65537_Method": (c_void_p, (c_int,)),
    "mbx_RSA_Method_BufSize": (c_int, (c_void_p,)),
    "mbx_rsa_private_crt_mb8": (c_uint32, (*[_Lanes] * 7, c_int, c_void_p, c_void_p)),
    "mbx_rsa_public_mb8": (c_uint32, (*[_Lanes] * 3, c_int, c_void_p, c_void_p)),
}


def _library() -> Any:
    """The functions of libcrypto_mb, or None if it is not installed, or the processor lacks the instructions."""
    folder = Path(sys.prefix, "lib")
    if not (folder / _PACKAGES[-1]).exists():
        return None
    try:
        for name in _PACKAGES:
            opened = ctypes.CDLL(str(folder / name))
        found: dict[str, Any] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            found[name] = function = getattr(opened, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError):
        return None
    return SimpleNamespace(**found) if found["mbx_is_crypto_mb_applicable"](0) else None


LIBRARY: Final[Any] = _library()
available: Final = LIBRARY is not None


@attrs.frozen(eq=False)
class BatchKey:
    """A private key in the form that the library needs. `parts`: p, q, d mod p-1, d mod q-1, 1/q mod p, and the modulus."""

    bits: int
    parts: tuple[ctypes.Array[c_char], ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, private: rsa.RSAPrivateKey) -> BatchKey | None:
        """None if its signatures cannot be made here."""
        bits = private.key_size
        if LIBRARY is None or bits not in _BITS:
            return None
        numbers = private.private_numbers()
        public = numbers.public_numbers
        if public.e != _EXPONENT or max(numbers.p.bit_length(), numbers.q.bit_length()) * 2 > bits:
            return None
        factors = (numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp)
        return cls(bits, (*(_number(each, bits // 16) for each in factors), _number(public.n, bits // 8)))


def sign(requests: Sequence[tuple[BatchKey, bytes]]) -> list[bytes | None]:
    """The signatures for pairs of a key and a SHA-256 hash; None for one that could not be made.

    Each is verified before it is returned: a wrong one, of a computation that faulty hardware disturbed, could reveal the key.
    """
    signatures: list[bytes | None] = [None] * len(requests)
    for bits in sorted({key.bits for key, _ in requests}):
        same = [number for number, (key, _) in enumerate(requests) if key.bits == bits]
        for start in range(0, len(same), LANES):
            chosen = same[start : start + LANES]
            for number, signature in zip(chosen, _sign_lanes(bits, [requests[each] for each in chosen]), strict=True):
                signatures[number] = signature
    return signatures


def _sign_lanes(bits: int, requests: Sequence[tuple[BatchKey, bytes]]) -> Iterator[bytes | None]:
    size = bits // 8
    count = len(requests)
    padded = [*requests, *[requests[0]] * (LANES - count)]  # every lane needs something to compute
    keys = [_Lanes(*[addressof(key.parts[part]) for key, _ in padded]) for part in range(6)]
    encoded = [_encoded(digest, size) for _, digest in requests]
    messages, signed, checked = (ctypes.create_string_buffer(size * LANES) for _ in range(3))
    messages.raw = b"".join(encoded) + encoded[0] * (LANES - count)
    private, public = LIBRARY.mbx_RSA_private_crt_Method(bits), LIBRARY.mbx_RSA_pub65537_Method(bits)
    scratch = ctypes.create_string_buffer(max(map(LIBRARY.mbx_RSA_Method_BufSize, (private, public))) + _ALIGNMENT)
    signing = LIBRARY.mbx_rsa_private_crt_mb8(_lanes(messages, size), _lanes(signed, size), *keys[:5], bits, private, addressof(scratch))
    checking = LIBRARY.mbx_rsa_public_mb8(_lanes(signed, size), _lanes(checked, size), keys[5], bits, public, addressof(scratch))
    if signing or checking:  # the status of each lane; it never happens with keys that `BatchKey.of` accepts
        return iter([None] * count)
    found, same = signed.raw, checked.raw == messages.raw
    return (found[at : at + size] if same or checked.raw[at : at + size] == messages.raw[at : at + size] else None
            for at in range(0, size * count, size))  # fmt: skip


def _lanes(buffer: ctypes.Array[c_char], size: int) -> Any:
    start = addressof(buffer)
    return _Lanes(*[start + lane * size for lane in range(LANES)])


def _number(value: int, size: int) -> ctypes.Array[c_char]:
    return ctypes.create_string_buffer(value.to_bytes(size, "little"), size)


def _encoded(digest: bytes, size: int) -> bytes:
    """EMSA-PKCS1-v1_5 (8017 §9.2)."""
    return b"\x00\x01" + b"\xff" * (size - len(_SHA256) - len(digest) - 3) + b"\x00" + _SHA256 + digest
