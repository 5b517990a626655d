"""Sending domains and their DKIM keys."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import attrs

DomainStatus = Literal["not_started", "pending", "verified", "failed"]
TlsPolicy = Literal["opportunistic", "enforced"]
Algorithm = Literal["rsa", "ed25519"]


@attrs.frozen
class Domain:
    """A sending domain of an account. `trusted` is the operator's word in place of DNS."""

    id: UUID
    account_id: UUID
    name: str
    region: str
    status: DomainStatus
    trusted: bool
    return_path: str
    signs_with: tuple[Algorithm, ...]
    tls: TlsPolicy

    @property
    def may_send(self) -> bool:
        return self.trusted or self.status == "verified"


@attrs.frozen
class StoredKey:
    """A DKIM key as signing needs it: PKCS#8 DER, unsealed. It has no place in a log."""

    selector: str
    algorithm: Algorithm
    der: bytes = attrs.field(repr=False)
