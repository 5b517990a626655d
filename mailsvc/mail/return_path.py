"""Return-path addresses (VERP): they identify the email that a bounce is about, and are signed so that nobody can forge one.

The local part is `b-` and 48 base32 characters: account number (4 bytes), email ID (16) and HMAC-SHA256 of both (10). It is not
case-sensitive.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from functools import lru_cache
from uuid import UUID

from mailsvc.mail.hmac_sha256 import HmacSha256

_MAC = 10
_LOCAL = re.compile(r"b-([a-z2-7]{48})", re.IGNORECASE)


def make(host: str, account_number: int, email_id: UUID, secret: bytes) -> str:
    """Returns the address for MAIL FROM of an email."""
    payload = account_number.to_bytes(4, "big") + email_id.bytes
    return f"b-{base64.b32encode(payload + _mac(payload, secret)).decode('ascii').lower()}@{host}"


def read(address: str, *secrets: bytes) -> tuple[int, UUID] | None:
    """Returns the account number and the email ID. None if the address was not made with one of `secrets`. Does not check the host."""
    found = _LOCAL.fullmatch(address.partition("@")[0])
    if found is None:
        return None
    try:
        data = base64.b32decode(found[1].upper())
    except binascii.Error:
        return None
    payload, mac = data[:-_MAC], data[-_MAC:]
    if not any(hmac.compare_digest(mac, _mac(payload, secret)) for secret in secrets):
        return None
    return int.from_bytes(payload[:4], "big"), UUID(bytes=payload[4:])


def resembles(address: str) -> bool:
    """Whether it has the form of a return path, valid or not."""
    return _LOCAL.fullmatch(address.partition("@")[0]) is not None


def _mac(payload: bytes, secret: bytes) -> bytes:
    return _keyed(secret).digest(payload)[:_MAC]


@lru_cache(16)
def _keyed(secret: bytes) -> HmacSha256:
    return HmacSha256(secret, b"return-path:")
