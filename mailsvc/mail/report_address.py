"""Addresses for DMARC and TLS reports about a sending domain: they name the domain, and are signed so that nobody can forge one.

The local part is `r-` and 40 base32 characters: domain ID (16 bytes) and HMAC-SHA256 of it (9). It is not case-sensitive.
"""

from __future__ import annotations

import base64
import hmac
from uuid import UUID

_MAC, _LENGTH = 9, 42


def make(host: str, domain_id: UUID, secret: bytes) -> str:
    """Returns the address. It stays the same as long as the secret does."""
    return f"r-{base64.b32encode(domain_id.bytes + _mac(domain_id.bytes, secret)).decode('ascii').lower()}@{host}"


def read(address: str, *secrets: bytes) -> UUID | None:
    """Returns the domain's ID. None if the address was not made with one of `secrets`. Does not check the host."""
    local = address.partition("@")[0]
    if len(local) != _LENGTH or not local.lower().startswith("r-"):
        return None
    try:
        data = base64.b32decode(local[2:].upper())
    except ValueError:
        return None
    payload, mac = data[:-_MAC], data[-_MAC:]
    return UUID(bytes=payload) if any(hmac.compare_digest(mac, _mac(payload, secret)) for secret in secrets) else None


def _mac(payload: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, b"reports:" + payload, "sha256")[:_MAC]
