"""Sending domains and their DKIM keys, whose private halves are sealed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import attrs

from mailsvc.store.cache import Bell, Cache
from mailsvc.store.ids import uuid7
from mailsvc.store.link import Row
from mailsvc.store.pool import Pool, Transaction
from mailsvc.store.seal import Seal

DomainStatus = Literal["not_started", "pending", "verified", "failed"]
TlsPolicy = Literal["opportunistic", "enforced"]
Algorithm = Literal["rsa", "ed25519"]

COLUMNS = "id, account_id, name, region, status, trusted_at IS NOT NULL, return_path, signs_with, tls"
FIND = f"SELECT {COLUMNS} FROM domains WHERE account_id = %s AND name = %s"
NAMED = f"SELECT {COLUMNS} FROM domains WHERE name = %s"
GET = f"SELECT {COLUMNS} FROM domains WHERE id = %s"
LIST = f"SELECT {COLUMNS} FROM domains WHERE account_id = %s ORDER BY id DESC"
ADD = f"INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, %s, %s, %s) RETURNING {COLUMNS}"
ADD_KEY = """
INSERT INTO dkim_keys (id, domain_id, selector, algorithm, public_key, sealed_key, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
TRUST = "UPDATE domains SET trusted_at = CASE WHEN %s THEN coalesce(trusted_at, %s) END WHERE account_id = %s AND name = %s"
SET_STATUS = "UPDATE domains SET status = %s WHERE account_id = %s AND id = %s"
SIGNING = """
SELECT k.id, k.selector, k.algorithm, k.sealed_key
FROM dkim_keys k JOIN domains d ON d.id = k.domain_id
WHERE k.domain_id = %s AND k.state = 'signing' AND k.algorithm = ANY (d.signs_with)
ORDER BY array_position(d.signs_with, k.algorithm), k.id
"""
PUBLISHED = "SELECT selector, algorithm, public_key FROM dkim_keys WHERE domain_id = %s AND state <> 'retired' ORDER BY id"


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


@attrs.frozen
class PublishedKey:
    """The half of a DKIM key that is in DNS. `public` is the p= tag."""

    selector: str
    algorithm: Algorithm
    public: str


class NewKey(Protocol):
    """A key pair; domains/keypair makes them."""

    @property
    def selector(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def public(self) -> str: ...
    @property
    def der(self) -> bytes: ...


class Domains:
    def __init__(self, pool: Pool, clock: Any, seal: Seal, bell: Bell | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._seal = seal
        self._named: Cache[tuple[UUID, str], Domain | None] = Cache(clock, bell)
        self._by_id: Cache[UUID, Domain | None] = Cache(clock, bell)
        self._keys: Cache[UUID, tuple[StoredKey, ...]] = Cache(clock, bell)

    async def find(self, account_id: UUID, name: str) -> Domain | None:
        """An account's domain by its name in A-labels, as of two seconds ago at most."""
        return await self._named.get((account_id, name), lambda: self._one(FIND, (account_id, name)))

    async def named(self, name: str) -> Domain | None:
        """Whosever it is, by its name in A-labels."""
        return await self._one(NAMED, (name,))

    async def get(self, domain_id: UUID) -> Domain | None:
        """Whosever it is: for mail that was accepted. As of two seconds ago at most."""
        return await self._by_id.get(domain_id, lambda: self._one(GET, (domain_id,)))

    async def add(self, account_id: UUID, name: str, region: str, keys: Sequence[NewKey]) -> Domain:
        """A new domain and its DKIM keys. Raises errors.Conflict when the name is taken, by whomever."""
        now = datetime.fromtimestamp(self._clock.seconds(), UTC)

        async def add(tx: Transaction) -> Domain:
            [row] = await tx.rows(ADD, (uuid7(now.timestamp()), account_id, name, region, now))
            for key in keys:
                key_id = uuid7(now.timestamp())
                stored = (key_id, row[0], key.selector, key.algorithm, key.public, self._seal.seal(key.der, key_id), now)
                await tx.run(ADD_KEY, stored)
            return _domain(row)

        domain = await self._pool.transact(add)
        self._changed()
        return domain

    async def trust(self, account_id: UUID, name: str, trusted: bool = True) -> bool:
        """Take the operator's word for it, or no longer; whether the account has such a domain."""
        now = datetime.fromtimestamp(self._clock.seconds(), UTC)
        found = await self._pool.run(TRUST, (trusted, now, account_id, name)) > 0
        self._changed()
        return found

    async def set_status(self, account_id: UUID, domain_id: UUID, status: DomainStatus) -> bool:
        """What its DNS was found to be; whether the account has such a domain."""
        found = await self._pool.run(SET_STATUS, (status, account_id, domain_id)) > 0
        self._changed()
        return found

    async def signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        """What its mail is signed with, in the order of `signs_with`; as of two seconds ago at most."""
        return await self._keys.get(domain_id, lambda: self._signing_keys(domain_id))

    async def published_keys(self, domain_id: UUID) -> list[PublishedKey]:
        """What its DNS should have."""
        return [PublishedKey(*row) for row in await self._pool.rows(PUBLISHED, (domain_id,))]

    async def list(self, account_id: UUID) -> Sequence[Domain]:
        """Newest first."""
        return [_domain(row) for row in await self._pool.rows(LIST, (account_id,))]

    async def _one(self, sql: str, params: Sequence[object]) -> Domain | None:
        rows = await self._pool.rows(sql, params)
        return _domain(rows[0]) if rows else None

    async def _signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        rows = await self._pool.rows(SIGNING, (domain_id,))
        return tuple(StoredKey(selector, algorithm, self._seal.open(sealed, key_id)) for key_id, selector, algorithm, sealed in rows)

    def _changed(self) -> None:
        for cache in (self._named, self._by_id, self._keys):
            cache.changed()


def _domain(row: Row) -> Domain:
    values: list[Any] = [*row]
    values[7] = tuple(values[7])
    return Domain(*values)
