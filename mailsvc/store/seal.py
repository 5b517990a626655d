"""Secrets at rest: sealed with AES-256-GCM, bound to the row that they belong to.

A sealed secret: one byte that names the key, 12 of nonce, then ciphertext and tag. The key file has a line for each key,
`<number> <base64 of 32 bytes>`; the last one seals, all of them open. To rotate, append a line.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import os
import tempfile
from pathlib import Path
from uuid import UUID

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENVIRONMENT = "MAILSVC_SEAL_KEY"  # instead of the file; the same lines, or commas between them
NONCE = 12


class SealError(Exception):
    """A key or a sealed secret is not usable. Says which and why, never what is in it."""


@attrs.define(eq=False)
class Seal:
    """Seals with the key `current`, opens with any."""

    current: int
    _keys: dict[int, AESGCM] = attrs.field(repr=False, alias="keys")
    _root: bytes = attrs.field(repr=False, alias="root")  # the first key, which stays when others are added

    @classmethod
    def load(cls, path: Path) -> Seal:
        """The keys from the environment, else from the file, which is made when it is not there."""
        given = os.environ.get(ENVIRONMENT)
        if given:
            return cls.read(given.replace(",", "\n"), ENVIRONMENT)
        if not path.exists():
            _make(path)
        return cls.read(path.read_text(), str(path))

    @classmethod
    def read(cls, text: str, where: str) -> Seal:
        keys: dict[int, AESGCM] = {}
        number, root = 0, b""
        for row, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                number, key = _parse(line, f"{where}, line {row}")
                if number in keys:
                    raise SealError(f"{where}, line {row}: key {number} is there twice.")
                keys[number] = AESGCM(key)
                root = root or key
        if not keys:
            raise SealError(f"{where} has no key in it.")
        return cls(number, keys, root)

    def secret_for(self, purpose: str) -> bytes:
        """A secret that is kept nowhere, for one purpose; every process with these keys comes to the same."""
        return hmac.digest(self._root, purpose.encode(), "sha256")

    def seal(self, secret: bytes, row: UUID) -> bytes:
        nonce = os.urandom(NONCE)
        return bytes([self.current]) + nonce + self._keys[self.current].encrypt(nonce, secret, _bound(self.current, row))

    def open(self, sealed: bytes, row: UUID) -> bytes:
        number = sealed[0] if sealed else 0
        if number not in self._keys:
            raise SealError(f"The secret of {row} was sealed with key {number}, which is not here.")
        try:
            return self._keys[number].decrypt(sealed[1 : 1 + NONCE], sealed[1 + NONCE :], _bound(number, row))
        except (InvalidTag, ValueError):
            raise SealError(f"The secret of {row} does not open with key {number}.") from None


def _bound(number: int, row: UUID) -> bytes:
    return bytes([number]) + row.bytes


def _parse(line: str, where: str) -> tuple[int, bytes]:
    try:
        number, encoded = line.split()
        key = base64.b64decode(encoded, validate=True)
        if not 1 <= int(number) <= 255 or len(key) != 32:
            raise ValueError
        return int(number), key
    except (ValueError, binascii.Error):
        raise SealError(f"{where}: expected a number from 1 to 255 and the base64 of 32 bytes.") from None


def _make(path: Path) -> None:
    """A file that is there with a whole key in it, or not there; the first of several processes wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = f"1 {base64.b64encode(AESGCM.generate_key(256)).decode()}\n"
    fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        Path(unfinished).unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # without this key everything that it sealed is lost
    finally:
        os.close(folder)
