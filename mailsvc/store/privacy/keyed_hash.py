"""Keyed hashes of addresses, which recognize an address without naming it.

They are made with a key derived from the installation's encryption keys. When these are rotated, the addresses are no longer known, so the
hashes keep the number of their key, and that key's line has to stay in the key file.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from mailsvc.store.encryption.secrets import Encryption

PURPOSE = "erased addresses"


def keyed_hashes(encryption: Encryption, email: str) -> Mapping[int, bytes]:
    """The hash of an address by key number, the current one first."""
    numbers = list(encryption.keys.by_number)[::-1]
    folded = email.lower().encode("utf-8", "replace")
    return {number: hmac.digest(key, folded, "sha256") for number, key in zip(numbers, encryption.secrets_for(PURPOSE), strict=True)}
