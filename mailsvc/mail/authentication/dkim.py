"""DKIM signing (RFC 6376, 8301, 8463): relaxed/relaxed, RSA-SHA256 and Ed25519-SHA256, oversigned.

This module does not verify signatures. RSA on vector lanes: rsa_batch.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Literal

import attrs
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)
from stringzilla import find

from mailsvc.mail.authentication import rsa_batch
from mailsvc.mail.authentication.rsa_batch import BatchKey
from mailsvc.mail.header import HeaderError, fold, split_fields, split_message

Algorithm = Literal["rsa", "ed25519"]

LIFETIME = 14 * 86400  # x= after t=, by default
TEST_LIFETIME = 3600  # x= after t= of test emails from the service's own domain (6376 §3.5)
AFTER_EXPIRY = 9 * 86400  # x= after the last attempt: for bounces, and for receivers that verify later
RSA_BITS = 2048

# 6376 §5.4.1, 8058 §4. True: listed once more than it occurs, so that nobody can add one (§5.4.2, §8.15).
SIGNED: dict[bytes, bool] = {
    b"from": True,
    b"to": True,
    b"cc": True,
    b"subject": True,
    b"date": True,
    b"reply-to": True,
    b"message-id": True,
    b"mime-version": True,
    b"content-type": True,
    b"list-unsubscribe": True,
    b"list-unsubscribe-post": True,
    b"content-transfer-encoding": True,
    b"sender": True,
    b"in-reply-to": False,
    b"references": False,
    b"list-id": False,
    b"feedback-id": False,
    b"auto-submitted": False,
}
_NAMES = tuple(SIGNED)
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_TAB = ord("\t")
_SPACES = re.compile(rb"  +")  # begins with two literal spaces, which are found fast
_SLICE = 256 * 1024
_LANES_FROM = 3  # RSA signatures; fewer are made faster one after the other
_WIDTH = 72


class DkimError(ValueError):
    """The message cannot be signed, or the key cannot be used."""


@attrs.frozen
class SigningKey:
    """A private key. `batch`: in the form for signing several messages at once, if this machine can do that."""

    algorithm: Algorithm
    private: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey = attrs.field(repr=False)
    batch: BatchKey | None = attrs.field(default=None, repr=False, eq=False)

    @property
    def name(self) -> str:
        """The value of the a= tag."""
        return f"{self.algorithm}-sha256"

    def sign(self, digest: bytes) -> bytes:
        """The signature of a SHA-256 hash (8017 §8.2.1, 8463 §3)."""
        if isinstance(self.private, rsa.RSAPrivateKey):
            return self.private.sign(digest, padding.PKCS1v15(), Prehashed(hashes.SHA256()))
        return self.private.sign(digest)

    def der(self) -> bytes:
        """The private key as PKCS#8 DER, for `load_key`."""
        return self.private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


# --- keys ------------------------------------------------------------------------------------------------------------


def generate(algorithm: Algorithm) -> tuple[bytes, str]:
    """Generates a key. Returns it as PKCS#8 DER, which the caller encrypts, and the p= value to publish."""
    private: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
    if algorithm == "rsa":
        private = rsa.generate_private_key(65537, RSA_BITS)
    else:
        private = ed25519.Ed25519PrivateKey.generate()
    key = SigningKey(algorithm, private)
    return key.der(), public_value(key)


def load_key(algorithm: Algorithm, der: bytes) -> SigningKey:
    """Loads a key. Skips the primality test: `generate` made the key, and authenticated encryption protected it since."""
    try:
        private = load_der_private_key(der, None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError):
        raise DkimError("The DKIM key cannot be read.") from None
    if algorithm == "rsa" and isinstance(private, rsa.RSAPrivateKey) and private.key_size >= 1024:  # 8301 §3.2
        return SigningKey("rsa", private, BatchKey.of(private))
    if algorithm == "ed25519" and isinstance(private, ed25519.Ed25519PrivateKey):
        return SigningKey("ed25519", private)
    raise DkimError(f"The DKIM key is not a usable {algorithm} key.")


def public_value(key: SigningKey) -> str:
    """Returns the p= value: SubjectPublicKeyInfo for RSA (6376 §3.6.1), the raw 32 bytes for Ed25519 (8463 §4)."""
    public = key.private.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        data = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    else:
        data = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(data).decode("ascii")


def dns_record(algorithm: Algorithm, public: str) -> str:
    """Returns the TXT record of a selector as one string."""
    return f"v=DKIM1; k={algorithm}; p={public}"


# --- canonical forms -------------------------------------------------------------------------------------------------


def relaxed_header(name: bytes, value: bytes) -> bytes:
    """Returns a canonical field with its CRLF (6376 §3.4.2)."""
    return _relaxed_fields([(name.lower(), value)])


def _relaxed_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns canonical fields, from their names in lower case and their values, in which each CRLF is before a space or tab."""
    folded = b"\r\n".join([name + b":" + value.strip(b" \t\r\n") for name, value in fields])
    return _single_spaces(folded.replace(b"\r\n ", b" ").replace(b"\r\n\t", b" ")) + b"\r\n"


def canonical_body_of(message: bytes, start: int, *, relaxed: bool) -> Iterator[bytes]:
    """Yields the canonical body in pieces of limited size, so that neither a long line nor a large body blocks other threads."""
    return canonical_body(_slices(message, start), relaxed=relaxed)


def _hash(chunks: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in canonical_body(chunks):
        digest.update(piece)
    return digest.digest()


def _single_spaces(data: bytes) -> bytes:
    if _TAB in data:
        data = data.replace(b"\t", b" ")
    return _SPACES.sub(b" ", data) if find(data, b"  ") >= 0 else data


def _slices(message: bytes, start: int) -> Iterator[bytes]:
    return (message[at : at + _SLICE] for at in range(start, len(message), _SLICE))


def canonical_body(chunks: Iterable[bytes], *, relaxed: bool = True) -> Iterator[bytes]:
    """Yields the canonical body in pieces (6376 §3.4.3, §3.4.4). `chunks` can be split anywhere.

    Holds back at most two bytes of a chunk for the next one, so the work for a chunk is limited by its size.
    """
    withheld = 0  # line ends that could be trailing empty lines
    held, empty = b"", True
    for chunk in chunks:
        piece = held + chunk
        if relaxed:
            piece = _single_spaces(piece)
            if find(piece, b" \r") >= 0:
                piece = piece.replace(b" \r\n", b"\r\n")
        kept = _unfinished(piece, relaxed)
        held, piece = piece[len(piece) - kept :], piece[: len(piece) - kept]
        text_end = _without_line_ends(piece)
        if text_end:
            yield from _line_ends(withheld)
            yield piece[:text_end]
            withheld, empty = 0, False
        withheld += (len(piece) - text_end) // 2
    if held:
        yield from _line_ends(withheld)
        yield held
        empty = False
    if not (empty and relaxed):
        yield b"\r\n"


def _line_ends(count: int) -> Iterator[bytes]:
    """Yields `count` line ends in pieces."""
    most = _SLICE // 2
    return (b"\r\n" * min(most, count - done) for done in range(0, count, most))


def _unfinished(piece: bytes, relaxed: bool) -> int:
    """Returns how many bytes at the end depend on the next chunk: half a line end, or a space that could be before one."""
    if piece.endswith(b" \r") and relaxed:
        return 2
    return int(piece.endswith(b"\r") or (relaxed and piece.endswith(b" ")))


def _without_line_ends(data: bytes) -> int:
    """Returns where the CRLFs at the end of `data` begin."""
    end = len(data.rstrip(b"\r\n"))
    if data.count(b"\r\n", end) * 2 == len(data) - end:
        return end
    end = len(data)
    while data.endswith(b"\r\n", 0, end):
        end -= 2
    return end


# --- signing ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Unsigned:
    """The DKIM-Signature fields of one message, without their signatures: for each its key, the field, and the SHA-256 hash to sign."""

    fields: tuple[tuple[SigningKey, bytes, bytes], ...]


def sign(
    message: bytes | Iterable[bytes], domain: str, keys: Sequence[tuple[str, SigningKey]], now: int, lifetime: int = LIFETIME
) -> bytes:
    """Returns the DKIM-Signature fields to prepend to `message`, which is whole or in pieces: one for each (selector, key), RSA first."""
    return complete([prepare(message, domain, keys, now, lifetime)])[0]


def prepare(
    message: bytes | Iterable[bytes], domain: str, keys: Sequence[tuple[str, SigningKey]], now: int, lifetime: int = LIFETIME
) -> Unsigned:
    """Does everything that `sign` does, except for the signatures. Several messages can then be signed together."""
    block, body = _opened(message)
    try:
        names, signed = _signed_fields(split_fields(block))
    except HeaderError as error:
        raise DkimError(str(error)) from None
    hashed = base64.b64encode(_hash(body)).decode("ascii")
    fields = []
    for selector, key in sorted(keys, key=lambda pair: pair[1].algorithm != "rsa"):
        field = _field_without_signature(domain, selector, key, now, lifetime, names, hashed)
        canonical = relaxed_header(b"DKIM-Signature", field)[:-2]  # 6376 §3.7: without its CRLF
        fields.append((key, field, hashlib.sha256(signed + canonical).digest()))
    return Unsigned(tuple(fields))


def complete(messages: Sequence[Unsigned]) -> list[bytes]:
    """Returns what `sign` returns for each message."""
    return completed(messages, signatures(hashes_of(messages)))


def hashes_of(messages: Sequence[Unsigned]) -> list[tuple[SigningKey, bytes]]:
    """Returns what has to be signed for these messages: each key, and the SHA-256 hash."""
    return [(key, digest) for message in messages for key, _, digest in message.fields]


def signatures(requests: Sequence[tuple[SigningKey, bytes]]) -> list[bytes]:
    """Returns the signatures in the order of the requests. RSA signatures are made on vector lanes if there are enough of them."""
    lanes = [(number, key.batch) for number, (key, _) in enumerate(requests) if key.batch is not None]
    made: dict[int, bytes | None] = {}
    if len(lanes) >= _LANES_FROM:
        together = rsa_batch.sign([(key, requests[number][1]) for number, key in lanes])
        made = dict(zip((number for number, _ in lanes), together, strict=True))
    return [made.get(number) or key.sign(digest) for number, (key, digest) in enumerate(requests)]


def completed(messages: Sequence[Unsigned], made: Iterable[bytes]) -> list[bytes]:
    """Returns what `sign` returns for each message, from the signatures of `hashes_of`."""
    following = iter(made)
    return [b"".join([_field(field, next(following)) for _, field, _ in message.fields]) for message in messages]


def _field(field: bytes, signature: bytes) -> bytes:
    return b"DKIM-Signature:" + field + _folded_base64(signature) + b"\r\n"


def _opened(message: bytes | Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Returns the header block, and the body in pieces."""
    if isinstance(message, bytes):
        block, start = split_message(message)
        return block, _slices(message, start)
    pieces, begun = iter(message), b""
    for piece in pieces:
        begun += piece
        if begun.startswith(b"\r\n") or b"\r\n\r\n" in begun:
            break
    block, start = split_message(begun)
    return block, chain(_slices(begun, start), pieces)


def _signed_fields(fields: Sequence[tuple[bytes, bytes, bytes]]) -> tuple[str, bytes]:
    """Returns the h= tag and the canonical fields in its order. Repeated fields are taken from the bottom (6376 §5.4.2)."""
    found = [(place, raw) for _, name, raw in reversed(fields) if (place := _PLACES.get(name.lower(), -1)) >= 0]
    found.sort(key=itemgetter(0))
    places = tuple([place for place, _ in found])
    if _PLACES[b"from"] not in places:
        raise DkimError("A message without From cannot be signed.")  # 6376 §5.4
    return _names(places), _relaxed_fields([(_NAMES[place], raw) for place, raw in found])


@lru_cache(maxsize=256)
def _names(present: tuple[int, ...]) -> str:
    """Returns the folded h= tag. `present`: the places in SIGNED of the fields of the message, each as often as it occurs."""
    lines, line = [], " h="
    for place, (name, oversigned) in enumerate(SIGNED.items()):
        for _ in range(present.count(place) + oversigned):
            if len(line) + len(name) > _WIDTH:
                lines.append(line)
                line = " "
            line += name.decode("ascii") + ":"
    return "\r\n".join([*lines, line[:-1] + ";"])


def _field_without_signature(domain: str, selector: str, key: SigningKey, now: int, lifetime: int, names: str, hashed: str) -> bytes:
    tags = [_first_tags(domain, selector, key.name), f" t={now}; x={now + lifetime};"]
    return "\r\n".join([*tags, names, f" bh={hashed};", " b="]).encode("ascii")


@lru_cache(maxsize=1000)
def _first_tags(domain: str, selector: str, algorithm: str) -> str:
    """Returns the beginning of the value, folded (5322 §2.1.1): the tags that only depend on the key."""
    field = fold("DKIM-Signature", (" v=1;", f" a={algorithm};", " c=relaxed/relaxed;", f" d={domain};", f" s={selector};"))
    return field.removeprefix("DKIM-Signature:").removesuffix("\r\n")


def _folded_base64(data: bytes) -> bytes:
    text = base64.b64encode(data)
    return b"\r\n ".join([text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)])
