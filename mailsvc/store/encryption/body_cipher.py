"""The format of encrypted messages: AES-256-GCM, piece by piece. Pure; where the keys come from: store/encryption/body_keys.

A piece is a byte with the number of the format, 12 random bytes of nonce, the ciphertext and the tag. Account, email and piece number are
authenticated with it, so that pieces cannot be exchanged. Each email has a key of its own, derived from the account's: the number of
messages that one key may encrypt with random nonces is limited, and an account has no such limit.
"""

from __future__ import annotations

import hmac
import os
from uuid import UUID

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mailsvc.store.encryption.body_key_files import BodyKeyError

FORMAT = b"\x01"
NONCE, TAG = 12, 16
OVERHEAD = len(FORMAT) + NONCE + TAG  # bytes that a piece grows by


@attrs.frozen
class BodyCipher:
    """Encrypts and decrypts the messages of one account."""

    account_id: UUID
    key: bytes = attrs.field(repr=False)

    def encrypt(self, email_id: UUID, piece: int, content: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return FORMAT + nonce + self._cipher(email_id).encrypt(nonce, content, self._bound(email_id, piece))

    def decrypt(self, email_id: UUID, piece: int, encrypted: bytes) -> bytes:
        """Raises BodyKeyError: it is damaged, belongs elsewhere, or is encrypted with another key."""
        if not encrypted.startswith(FORMAT):
            raise BodyKeyError(f"The message of {email_id} is encrypted in a format that this release does not know.")
        nonce, rest = encrypted[1 : 1 + NONCE], memoryview(encrypted)[1 + NONCE :]
        try:
            return self._cipher(email_id).decrypt(nonce, rest, self._bound(email_id, piece))
        except (InvalidTag, ValueError):
            raise BodyKeyError(f"The message of {email_id} cannot be decrypted: it is damaged, or another key encrypted it.") from None

    def _cipher(self, email_id: UUID) -> AESGCM:
        return AESGCM(hmac.digest(self.key, b"mailsvc body" + email_id.bytes, "sha256"))

    def _bound(self, email_id: UUID, piece: int) -> bytes:
        return FORMAT + self.account_id.bytes + email_id.bytes + piece.to_bytes(2, "big")
