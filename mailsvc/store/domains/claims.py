"""Claims of domain names that another account has verified. What a check makes of them is written by store/domains/checks."""

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

LIFE = timedelta(days=7)  # in which the record has to be found
KEPT = timedelta(days=30)  # after that, when its account makes another one


class DomainClaims:
    def __init__(self, pool: Pool, domains: Domains) -> None:
        self._pool = pool
        self._domains = domains

    async def of(self, account_id: UUID, domain_id: UUID) -> Claim | None:
        """The claim that an account made with this domain, as it is now."""
        rows = await self._pool.rows(domains_sql.CLAIM_OF, (account_id, domain_id))
        return self._claim(rows[0]) if rows else None

    async def make(self, domain: Domain, status: ClaimStatus, lines: Sequence[Line] = ()) -> Claim:
        """A new claim for the name of an account's own domain; an older one of this domain is replaced. `lines` go into the audit log."""
        now = self._domains.now()

        async def make(tx: Transaction) -> Claim:
            await tx.run(domains_sql.FORGET_CLAIMS, (domain.account_id, now - KEPT))
            place = (domain.id, domain.account_id, domain.name, domain.region)
            rows = await tx.rows(domains_sql.ADD_CLAIM, (uuid7(now.timestamp()), *place, secrets.token_hex(16), status, now, now + LIFE))
            await write(tx, lines, now.timestamp())
            return self._claim(rows[0])

        return await self._pool.transact(make)

    def _claim(self, row: Row) -> Claim:
        claim = Claim(*row)
        return attrs.evolve(claim, status="expired") if claim.open and claim.expires_at <= self._domains.now() else claim
