"""Claims of domain names that another account has verified. store/domains/checks settles them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import attrs

from mailsvc.store.domains import domains_sql
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.values import Claim, ClaimStatus, Domain
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction

LIFETIME = timedelta(days=7)
KEEP = timedelta(days=30)  # after expiry; deleted with the account's next claim


class DomainClaims:
    def __init__(self, pool: Pool, domains: Domains) -> None:
        self._pool = pool
        self._domains = domains

    async def get(self, account_id: UUID, domain_id: UUID) -> Claim | None:
        """The account's claim for this domain. Not cached."""
        rows = await self._pool.rows(domains_sql.CLAIM_OF, (account_id, domain_id))
        return self._claim(rows[0]) if rows else None

    async def make(self, domain: Domain, status: ClaimStatus, lines: Sequence[Line] = ()) -> Claim:
        """Create a claim for the name of the account's domain, replacing an older one. `lines` are written to the audit log."""
        now = self._domains.now()

        async def make(tx: Transaction) -> Claim:
            await tx.run(domains_sql.FORGET_CLAIMS, (domain.account_id, now - KEEP))
            place = (domain.id, domain.account_id, domain.name, domain.region)
            rows = await tx.rows(
                domains_sql.ADD_CLAIM, (uuid7(now.timestamp()), *place, secrets.token_hex(16), status, now, now + LIFETIME)
            )
            await write(tx, lines, now.timestamp())
            return self._claim(rows[0])

        return await self._pool.transact(make)

    def _claim(self, row: Row) -> Claim:
        claim = Claim(**domains_sql.CLAIM.read(row))
        return attrs.evolve(claim, status="expired") if claim.open and claim.expires_at <= self._domains.now() else claim
