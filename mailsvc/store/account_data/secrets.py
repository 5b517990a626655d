"""Encrypted columns of an archive: they are encrypted with the archive's key instead of the installation's keys. Pure.

The keys of encrypted messages have a file besides: store/encryption/body_keys changes them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mailsvc.store.encryption.body_keys import TABLE as BODY_KEYS
from mailsvc.store.encryption.rotation import COLUMNS
from mailsvc.store.encryption.secrets import Encryption

EMPTY = r"\x"  # of a DKIM key that is retired

_SECRETS: dict[str, list[tuple[str, str]]] = {}
for _table, _id, _column in COLUMNS:
    if _table != BODY_KEYS:
        _SECRETS.setdefault(_table, []).append((_id, _column))


def encrypt_again(table: str, row: dict[str, Any], old: Encryption, new: Encryption) -> None:
    """Change the secrets of a row, which are bytes as Postgres writes them in JSON. Raises EncryptionError."""
    for id_, column in _SECRETS.get(table, ()):
        value = row[column]
        if value is not None and value != EMPTY:
            owner = UUID(row[id_])
            row[column] = r"\x" + new.encrypt(old.decrypt(bytes.fromhex(value[2:]), owner), owner).hex()
