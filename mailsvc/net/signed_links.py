"""Links that open one thing for a while without a key: what they open, and until when, under a signature."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from uuid import UUID

import attrs

SHARE, SHARED_LONGEST = "share", 48 * 3600  # a whole email, for so many seconds at most
MAC = 16  # octets of an HMAC-SHA-256 (2104 §5: no fewer than half)
TIME = 5


@attrs.frozen
class Opened:
    """What a link opens. `part` of an email, or its own id for the whole of it."""

    account_id: UUID
    email_id: UUID
    part: UUID


@attrs.define(eq=False)
class SignedLinks:
    """The first of `secrets` signs, each of them is accepted."""

    secrets: Callable[[], Sequence[bytes]]

    def shared(self, base_url: str, account_id: UUID, email_id: UUID, expires: float) -> str:
        """The address of a page that shows an email to whoever has it."""
        return f"{base_url}/shared?token={self.make(SHARE, Opened(account_id, email_id, email_id), expires)}"

    def make(self, purpose: str, opened: Opened, expires: float) -> str:
        """A token for a query parameter."""
        told = opened.account_id.bytes + opened.email_id.bytes + opened.part.bytes + int(expires).to_bytes(TIME, "big")
        return base64.urlsafe_b64encode(told + _mac(self.secrets()[0], purpose, told)).decode().rstrip("=")

    def read(self, purpose: str, token: str, now: float) -> Opened | None:
        """What it opens now; None when that is nothing, for whatever reason."""
        try:
            octets = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            return None
        told, mac = octets[:-MAC], octets[-MAC:]
        if len(told) != 48 + TIME or int.from_bytes(told[48:], "big") <= now:
            return None
        if not any(hmac.compare_digest(mac, _mac(secret, purpose, told)) for secret in self.secrets()):
            return None
        return Opened(UUID(bytes=told[:16]), UUID(bytes=told[16:32]), UUID(bytes=told[32:48]))


def _mac(secret: bytes, purpose: str, told: bytes) -> bytes:
    return hmac.digest(secret, purpose.encode() + b"\0" + told, "sha256")[:MAC]
