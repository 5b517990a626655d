"""Secrets at rest: encrypted with AES-256-GCM, bound to the row that they belong to.

An encrypted secret: one byte that names the key, 12 of nonce, then ciphertext and tag. The key file has a line for each key,
`<number> <base64 of 32 bytes>`; the last one encrypts, all of them open. How a file changes: store/encryption/key_file, how rows
follow: store/encryption/rotation.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from twisted.logger import Logger

log = Logger()

ENVIRONMENT = "MAILSVC_ENCRYPTION_KEYS"  # instead of the file: the same lines, separated by newlines or commas
OLD_ENVIRONMENT = "MAILSVC_SEAL_KEY"  # its name until 0.1; accepted for one more release
NONCE = 12


class EncryptionError(Exception):
    """A key or an encrypted secret is not usable. Says which and why, never what is in it."""


@attrs.frozen
class Keys:
    """What a file has: the key of each number, the one that encrypts last."""

    by_number: Mapping[int, bytes] = attrs.field(repr=False)

    @classmethod
    def read(cls, text: str, where: str) -> Keys:
        keys: dict[int, bytes] = {}
        for row, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                number, key = _parse(line, f"{where}, line {row}")
                if number in keys:
                    raise EncryptionError(f"{where}, line {row}: key {number} is there twice.")
                keys[number] = key
        if not keys:
            raise EncryptionError(f"{where} has no key in it.")
        return cls(keys)

    @property
    def current(self) -> int:
        return list(self.by_number)[-1]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """What names each key to other processes without showing it, the one that encrypts first."""
        return tuple(fingerprint(number, key) for number, key in list(self.by_number.items())[::-1])


@attrs.frozen
class Found:
    """Keys that a file has now; `seen` identifies its version."""

    keys: Keys
    seen: object


@attrs.define(eq=False)
class Encryption:
    """Encrypts with the key `current`, opens with any. With a `path` it follows the file.

    `rejected`: why the keys that the file has now are not used, if they are not.
    """

    keys: Keys
    path: Path | None = None
    rejected: str | None = attrs.field(default=None, init=False)
    _seen: object = attrs.field(default=None, init=False)
    _ciphers: dict[int, AESGCM] = attrs.field(factory=dict, init=False, repr=False)
    _derived: dict[str, tuple[bytes, ...]] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, path: Path) -> Encryption:
        """The keys from the environment, else from the file."""
        name = environment()
        if name is not None:
            if name == OLD_ENVIRONMENT:
                log.warn("{old} is deprecated; set {new} instead.", old=OLD_ENVIRONMENT, new=ENVIRONMENT)
            return cls.read(os.environ[name].replace(",", "\n"), name)
        seen = _look(path)
        encryption = cls(Keys.read(path.read_text(), str(path)), path)
        encryption._seen = seen
        return encryption

    @classmethod
    def read(cls, text: str, where: str) -> Encryption:
        return cls(Keys.read(text, where))

    @property
    def current(self) -> int:
        return self.keys.current

    def refresh(self) -> bool:
        """Read the file again when it is another one by now; whether the keys are others too. EncryptionError or OSError: they stay."""
        found = self.changed()
        if found is not None:
            self.adopt(found)
        return found is not None

    def changed(self) -> Found | None:
        """Other keys than these, if the file has changed and has them. EncryptionError or OSError when it cannot be used."""
        if self.path is None or (seen := _look(self.path)) == self._seen:
            return None
        keys = Keys.read(self.path.read_text(), str(self.path))
        if keys == self.keys and keys.fingerprints == self.keys.fingerprints:
            self._seen, self.rejected = seen, None
            return None
        return Found(keys, seen)

    def adopt(self, found: Found) -> None:
        """Use these keys from now on."""
        self.keys, self._ciphers, self._derived = found.keys, {}, {}
        self._seen, self.rejected = found.seen, None

    def reject(self, found: Found, why: str) -> None:
        """Keep the present keys until the file changes again."""
        self._seen, self.rejected = found.seen, why

    def secrets_for(self, purpose: str) -> Sequence[bytes]:
        """Secrets that are kept nowhere, for one purpose; every process with these keys comes to the same.

        The first is to sign with. The others, of keys that encrypted before, are accepted as long as their keys are here.
        """
        found = self._derived.get(purpose)
        if found is None:
            keys = list(self.keys.by_number.values())
            found = self._derived[purpose] = tuple(hmac.digest(key, purpose.encode(), "sha256") for key in reversed(keys))
        return found

    def encrypt(self, secret: bytes, row: UUID) -> bytes:
        number, nonce = self.current, os.urandom(NONCE)
        return bytes([number]) + nonce + self._cipher(number).encrypt(nonce, secret, _bound(number, row))

    def decrypt(self, encrypted: bytes, row: UUID) -> bytes:
        number = encrypted[0] if encrypted else 0
        if number not in self.keys.by_number:
            raise EncryptionError(f"The secret of {row} was encrypted with key {number}, which is not here.")
        try:
            return self._cipher(number).decrypt(encrypted[1 : 1 + NONCE], encrypted[1 + NONCE :], _bound(number, row))
        except (InvalidTag, ValueError):
            raise EncryptionError(f"The secret of {row} does not open with key {number}.") from None

    def _cipher(self, number: int) -> AESGCM:
        cipher = self._ciphers.get(number)
        if cipher is None:
            cipher = self._ciphers[number] = AESGCM(self.keys.by_number[number])
        return cipher


def environment() -> str | None:
    """The environment variable that holds the keys, if one does."""
    return next((name for name in (ENVIRONMENT, OLD_ENVIRONMENT) if os.environ.get(name)), None)


def fingerprint(number: int, key: bytes) -> str:
    return f"{number}:{hmac.digest(key, b'fingerprint', 'sha256')[:6].hex()}"


def _look(path: Path) -> object:
    """What is another one when the file is."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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
        raise EncryptionError(f"{where}: expected a number from 1 to 255 and the base64 of 32 bytes.") from None
