"""Encryption of secrets at rest: AES-256-GCM, with each secret bound to its row.

An encrypted secret is one byte with the number of the key, 12 bytes of nonce, the ciphertext and the tag. The key file has one line
per key, `<number> <base64 of 32 bytes>`; all keys decrypt, the last one encrypts. Changing the file: store/encryption/key_file;
encrypting rows again: store/encryption/rotation.
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
    """A key or an encrypted secret is not usable. The message says which and why, without showing any of it."""


@attrs.frozen
class Keys:
    """The keys of a file by number. The last one encrypts."""

    by_number: Mapping[int, bytes] = attrs.field(repr=False)

    @classmethod
    def read(cls, text: str, where: str) -> Keys:
        keys: dict[int, bytes] = {}
        for row, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                number, key = _parse(line, f"{where}, line {row}")
                if number in keys:
                    raise EncryptionError(f"{where}, line {row}: key {number} appears twice.")
                keys[number] = key
        if not keys:
            raise EncryptionError(f"{where} contains no key.")
        return cls(keys)

    @property
    def current(self) -> int:
        return list(self.by_number)[-1]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Identify each key to other processes without revealing it. The key that encrypts comes first."""
        return tuple(fingerprint(number, key) for number, key in list(self.by_number.items())[::-1])


@attrs.frozen
class ChangedKeys:
    """Keys read from a changed file; `version` identifies the file's version."""

    keys: Keys
    version: object


@attrs.define(eq=False)
class Encryption:
    """Encrypts with the current key, decrypts with any. With a `path`, keys can be reloaded from the file.

    `rejected`: why the keys now in the file are not used, if they are not.
    """

    keys: Keys
    path: Path | None = None
    rejected: str | None = attrs.field(default=None, init=False)
    _version: object = attrs.field(default=None, init=False)
    _ciphers: dict[int, AESGCM] = attrs.field(factory=dict, init=False, repr=False)
    _derived: dict[str, Mapping[int, bytes]] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, path: Path) -> Encryption:
        """The keys from the environment if it has any, otherwise from the file."""
        name = environment()
        if name is not None:
            if name == OLD_ENVIRONMENT:
                log.warn("{old} is deprecated; set {new} instead.", old=OLD_ENVIRONMENT, new=ENVIRONMENT)
            return cls.read(os.environ[name].replace(",", "\n"), name)
        version = _version(path)
        encryption = cls(Keys.read(path.read_text(), str(path)), path)
        encryption._version = version
        return encryption

    @classmethod
    def read(cls, text: str, where: str) -> Encryption:
        return cls(Keys.read(text, where))

    @property
    def current(self) -> int:
        return self.keys.current

    def refresh(self) -> bool:
        """Reload the file if it has changed. Returns whether the keys have. On EncryptionError or OSError the present keys stay."""
        changed = self.changed()
        if changed is not None:
            self.adopt(changed)
        return changed is not None

    def changed(self) -> ChangedKeys | None:
        """The keys of the file, if they differ from these. Raises EncryptionError or OSError if the file is unusable."""
        if self.path is None or (version := _version(self.path)) == self._version:
            return None
        keys = Keys.read(self.path.read_text(), str(self.path))
        if keys == self.keys and keys.fingerprints == self.keys.fingerprints:
            self._version, self.rejected = version, None
            return None
        return ChangedKeys(keys, version)

    def adopt(self, changed: ChangedKeys) -> None:
        """Use these keys from now on."""
        self.keys, self._ciphers, self._derived = changed.keys, {}, {}
        self._version, self.rejected = changed.version, None

    def reject(self, changed: ChangedKeys, why: str) -> None:
        """Keep the present keys until the file changes again."""
        self._version, self.rejected = changed.version, why

    def secrets_for(self, purpose: str) -> Sequence[bytes]:
        """Signing secrets for one purpose, derived from the keys, so the same in every process.

        Sign with the first. Accept signatures of the others, which come from former keys, as long as those keys are in the file.
        """
        return tuple(self.numbered_secrets_for(purpose).values())

    def numbered_secrets_for(self, purpose: str) -> Mapping[int, bytes]:
        """The same by the number of their key, for what names the key that it was made with."""
        derived = self._derived.get(purpose)
        if derived is None:
            keys = reversed(list(self.keys.by_number.items()))
            derived = self._derived[purpose] = {number: hmac.digest(key, purpose.encode(), "sha256") for number, key in keys}
        return derived

    def encrypt(self, secret: bytes, row: UUID) -> bytes:
        number, nonce = self.current, os.urandom(NONCE)
        return bytes([number]) + nonce + self._cipher(number).encrypt(nonce, secret, _bound(number, row))

    def decrypt(self, encrypted: bytes, row: UUID) -> bytes:
        number = encrypted[0] if encrypted else 0
        if number not in self.keys.by_number:
            raise EncryptionError(f"The secret of {row} is encrypted with key {number}, which is missing.")
        try:
            return self._cipher(number).decrypt(encrypted[1 : 1 + NONCE], encrypted[1 + NONCE :], _bound(number, row))
        except (InvalidTag, ValueError):
            raise EncryptionError(f"The secret of {row} cannot be decrypted with key {number}.") from None

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


def _version(path: Path) -> object:
    """A value that changes when the file does."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
