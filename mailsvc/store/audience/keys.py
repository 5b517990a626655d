"""The secret of an account that keys the hashes of addresses and signs the links in mail to contacts. It never changes."""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.mail.hmac_sha256 import HmacSha256
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction

SECRET = 32  # bytes
HASH = 16  # bytes: too many to guess, and two addresses never share them
_CACHED = 10_000

FIND = "SELECT secret FROM audience_keys WHERE account_id = %s"
SEVERAL = "SELECT account_id, secret FROM audience_keys WHERE account_id = ANY (%s)"
ADD = "INSERT INTO audience_keys (account_id, secret) VALUES (%s, %s) ON CONFLICT DO NOTHING"


def folded(email: str) -> str:
    """What addresses are compared by."""
    return email.lower()


@attrs.frozen
class AudienceKey:
    secret: bytes = attrs.field(repr=False)
    _keyed: HmacSha256 = attrs.field(init=False, repr=False, eq=False, default=attrs.Factory(lambda self: HmacSha256(self.secret), True))

    def hash(self, email: str) -> bytes:
        """The hash of an address."""
        return self._hmac(b"address\0" + folded(email).encode("utf-8", "replace"))

    def sign(self, purpose: str, payload: bytes) -> bytes:
        """A signature for a link. `purpose` keeps one kind of link from working as another."""
        return self._hmac(purpose.encode() + b"\0" + payload)

    def verify(self, purpose: str, payload: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(signature, self.sign(purpose, payload))

    def _hmac(self, message: bytes) -> bytes:
        return self._keyed.digest(message)[:HASH]


@attrs.define(eq=False)
class AudienceKeys:
    """The keys of all accounts."""

    pool: Pool
    encryption: Encryption
    _known: dict[UUID, AudienceKey] = attrs.field(factory=dict, init=False, repr=False)

    async def of(self, account_id: UUID) -> AudienceKey:
        """The key of an account, which is created the first time."""
        known = await self.existing(account_id)
        if known is None:
            await self.pool.run(ADD, (account_id, self.encryption.encrypt(os.urandom(SECRET), account_id)))
            known = await self.existing(account_id)
            assert known is not None
        return known

    async def existing(self, account_id: UUID) -> AudienceKey | None:
        """The same, or None if the account has none. For links, whose account is not verified yet."""
        known = self._known.get(account_id)
        if known is None:
            return self._read(account_id, await self.pool.rows(FIND, (account_id,)))
        return known

    async def several(self, account_ids: Collection[UUID]) -> Mapping[UUID, AudienceKey]:
        """Those of the accounts that have one."""
        if missing := [account_id for account_id in account_ids if account_id not in self._known]:
            for account_id, secret in await self.pool.rows(SEVERAL, (missing,)):
                self._read(account_id, [(secret,)])
        return {account_id: self._known[account_id] for account_id in account_ids if account_id in self._known}

    async def read(self, tx: Transaction, account_id: UUID) -> AudienceKey | None:
        """The same as `existing`, within a transaction."""
        return self._known.get(account_id) or self._read(account_id, await tx.rows(FIND, (account_id,)))

    def _read(self, account_id: UUID, rows: Sequence[Row]) -> AudienceKey | None:
        if not rows:
            return None
        if len(self._known) >= _CACHED:
            self._known.clear()
        known = self._known[account_id] = AudienceKey(self.encryption.decrypt(bytes(rows[0][0]), account_id))
        return known
