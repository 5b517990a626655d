"""Signed links, which open one email or attachment without an API key until they expire."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from uuid import UUID

import attrs

SHARE = "share"  # the purpose of links to a whole email
SHARE_MAX_SECONDS = 48 * 3600
MAC = 16  # bytes of an HMAC-SHA-256 (2104 §5: at least half)
TIME = 5  # bytes


@attrs.frozen
class Opened:
    """What a link opens. `part` is the ID of an attachment, or of the email for the whole email."""

    account_id: UUID
    email_id: UUID
    part: UUID


@attrs.define(eq=False)
class SignedLinks:
    """Signs with the first of `secrets`; accepts signatures of all of them."""

    secrets: Callable[[], Sequence[bytes]]

    def shared(self, base_url: str, account_id: UUID, email_id: UUID, expires: float) -> str:
        """Returns the URL of a page that shows an email to anyone who has the URL."""
        return f"{base_url}/shared?token={self.make(SHARE, Opened(account_id, email_id, email_id), expires)}"

    def make(self, purpose: str, opened: Opened, expires: float) -> str:
        """Returns a token for a query parameter."""
        payload = opened.account_id.bytes + opened.email_id.bytes + opened.part.bytes + int(expires).to_bytes(TIME, "big")
        return base64.urlsafe_b64encode(payload + _mac(self.secrets()[0], purpose, payload)).decode().rstrip("=")

    def read(self, purpose: str, token: str, now: float) -> Opened | None:
        """Returns what the token opens, or None if it is invalid or expired."""
        try:
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            return None
        payload, mac = data[:-MAC], data[-MAC:]
        if len(payload) != 48 + TIME or int.from_bytes(payload[48:], "big") <= now:
            return None
        if not any(hmac.compare_digest(mac, _mac(secret, purpose, payload)) for secret in self.secrets()):
            return None
        return Opened(UUID(bytes=payload[:16]), UUID(bytes=payload[16:32]), UUID(bytes=payload[32:48]))


def _mac(secret: bytes, purpose: str, payload: bytes) -> bytes:
    return hmac.digest(secret, purpose.encode() + b"\0" + payload, "sha256")[:MAC]
