"""Keyed hashes of addresses, which recognize an address without naming it.

They are made with a key derived from the installation's encryption keys. When these are rotated, the addresses are no longer known, so the
hashes keep the number of their key, and that key's line has to stay in the key file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mailsvc.mail.hmac_sha256 import HmacSha256
from mailsvc.store.encryption.secrets import Encryption

PURPOSE = "erased addresses"


def keyed_hashes(encryption: Encryption, email: str) -> Mapping[int, bytes]:
    """The hash of an address by key number, the current one first."""
    folded = email.lower().encode("utf-8", "replace")
    return {number: _keyed(secret).digest(folded) for number, secret in encryption.numbered_secrets_for(PURPOSE).items()}


@lru_cache(16)
def _keyed(secret: bytes) -> HmacSha256:
    return HmacSha256(secret)
