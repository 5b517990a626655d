"""The key that signs anchors (Ed25519), the file that they are appended to, and the check of what a signed anchor says."""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mailsvc.store.audit.anchors import FIRST, Anchor, digest

TAIL = 1024 * 1024  # bytes at the end of the file in which the last anchor is looked for


class BadKey(Exception):
    """Why a key file cannot be used, as a sentence."""


@attrs.frozen
class SigningKey:
    """`public`: also former keys, whose anchors are still accepted."""

    private: Ed25519PrivateKey | None = attrs.field(repr=False)
    public: Sequence[Ed25519PublicKey]

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """The first private key of the file signs. Further keys, private or public, are former ones. Raises BadKey."""
        try:
            blocks = path.read_text("ascii").split("-----BEGIN ")[1:]
            keys = [_load(f"-----BEGIN {block}") for block in blocks]
        except OSError as error:
            raise BadKey(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, UnsupportedAlgorithm):
            raise BadKey(f"{path} is not a file of Ed25519 keys (PEM).") from None
        if not keys:
            raise BadKey(f"{path} has no key.")
        private = next((key for key in keys if isinstance(key, Ed25519PrivateKey)), None)
        return cls(private, [key.public_key() if isinstance(key, Ed25519PrivateKey) else key for key in keys])

    def sign(self, data: bytes) -> bytes:
        assert self.private is not None
        return self.private.sign(data)

    def signed(self, anchor: Anchor) -> bool:
        return any(_verifies(key, anchor) for key in self.public)


def _load(pem: str) -> Ed25519PrivateKey | Ed25519PublicKey:
    data = pem.encode()
    key = serialization.load_pem_private_key(data, None) if "PRIVATE KEY" in pem[:40] else serialization.load_pem_public_key(data)
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise ValueError
    return key


def _verifies(key: Ed25519PublicKey, anchor: Anchor) -> bool:
    try:
        key.verify(anchor.signature, anchor.body.encode())
    except InvalidSignature:
        return False
    return True


def create_key(path: Path) -> str:
    """Write a new key that only its owner can read. Returns its public half (PEM). Raises OSError."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


@attrs.frozen
class AnchorFile:
    """One JSON object for each anchor. Several processes can append to it."""

    path: Path

    def append(self, anchors: Sequence[Anchor]) -> int:
        """Append those that are not in the file yet. Returns the last number in it; 0: none. It blocks."""
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - TAIL))
            tail = file.read()
            last = max((anchor.number for anchor in _parsed(tail.splitlines())), default=0)
            new = [anchor for anchor in anchors if anchor.number > last]
            if new:
                broken = b"\n" if tail and not tail.endswith(b"\n") else b""  # a write that was cut off
                file.write(broken + b"".join(json.dumps(anchor.document()).encode() + b"\n" for anchor in new))
                file.flush()
                os.fsync(file.fileno())
            return max(last, *(anchor.number for anchor in new)) if new else last

    def read(self) -> Iterator[Anchor]:
        """All anchors. Lines that are none, such as those of a write that was cut off, are left out."""
        with self.path.open("rb") as file:
            yield from _parsed(file)


def _parsed(lines: Iterable[bytes]) -> Iterator[Anchor]:
    for line in lines:
        try:
            yield Anchor.read(json.loads(line))
        except ValueError:
            continue


@attrs.define
class Anchored:
    """What a sequence of anchors says: the hashes by account and line, and what is wrong with the anchors. `source` names them."""

    key: SigningKey
    source: str
    hashes: defaultdict[UUID, dict[int, set[bytes]]] = attrs.field(factory=lambda: defaultdict(dict))
    problems: list[str] = attrs.field(factory=list)
    number: int = 0
    _previous: bytes | None = FIRST

    def add(self, anchor: Anchor) -> None:
        """Check the next anchor, and take over what it says if its signature is right."""
        name = f"Anchor {anchor.number} of {self.source}"
        if anchor.number != self.number + 1:
            self.problems.append(f"Anchor {self.number + 1} of {self.source} is missing.")
            self._previous = None
        self.number = anchor.number
        if not self.key.signed(anchor):
            self.problems.append(f"{name} is not signed with this key, or was changed.")
            self._previous = None
            return
        said = json.loads(anchor.body)
        if said["number"] != anchor.number or self._previous not in (None, bytes.fromhex(said["previous"])):
            self.problems.append(f"{name} does not follow from the one before it.")
        self._previous = digest(anchor.body)
        for account_id, seq, hash in said["heads"]:
            self.hashes[UUID(account_id)].setdefault(seq, set()).add(bytes.fromhex(hash))
