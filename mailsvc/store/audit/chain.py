"""The formula of the audit log's hash chain: pure functions, without SQL.

    commitment = SHA-256(salt, text)                       of the actor, the network address and the subject
    digest     = SHA-256(account, ID, time, user, kind, action, the three commitments)
    hash       = SHA-256(hash of the previous line, digest)

A text and its salt can be erased: the commitment stays in the line, and says nothing without the salt.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

import attrs

SALT = 16  # bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOBODY = bytes(16)


@attrs.frozen
class Committed:
    """A text with its salt, and the commitment to both."""

    text: str = attrs.field(repr=False)
    salt: bytes = attrs.field(repr=False)
    hash: bytes

    @classmethod
    def to(cls, text: str) -> Committed:
        salt = secrets.token_bytes(SALT)
        return cls(text, salt, commitment(salt, text))


@attrs.frozen
class Link:
    """What the chain contains of a line."""

    account_id: UUID
    id: UUID
    at: datetime
    user_id: UUID | None
    kind: str
    action: str
    actor_hash: bytes
    address_hash: bytes
    subject_hash: bytes

    def digest(self) -> bytes:
        """Every part has a fixed length, so no two lines have the same bytes."""
        return _sha256(
            b"mailsvc audit 1",
            self.account_id.bytes,
            self.id.bytes,
            ((self.at - _EPOCH) // timedelta(microseconds=1)).to_bytes(8, "big", signed=True),
            _NOBODY if self.user_id is None else self.user_id.bytes,
            _sha256(self.kind.encode()),
            _sha256(self.action.encode()),
            self.actor_hash,
            self.address_hash,
            self.subject_hash,
        )


def start(account_id: UUID) -> bytes:
    """What the first line of an account has as the hash of the line before it."""
    return _sha256(b"mailsvc audit", account_id.bytes)


def following(previous: bytes, digest: bytes) -> bytes:
    """The hash of a line, given that of the line before it."""
    return _sha256(previous, digest)


def commitment(salt: bytes, text: str) -> bytes:
    return _sha256(salt, text.encode())


def _sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()
