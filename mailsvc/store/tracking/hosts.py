"""Reads which hosts serve tracked links, and which accounts are suspended."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import attrs

from mailsvc.store.domains.domains_sql import DOMAIN
from mailsvc.store.domains.values import domain_of
from mailsvc.store.postgres.pool import Pool

DOMAINS = f"SELECT {DOMAIN} FROM domains WHERE tracking_subdomains <> '{{}}'"
SUSPENDED = "SELECT id FROM accounts WHERE suspended_at IS NOT NULL"


@attrs.frozen
class Served:
    """`by_host`: the accounts whose links a verified host serves."""

    by_host: Mapping[str, frozenset[UUID]] = attrs.field(factory=dict)
    suspended: frozenset[UUID] = frozenset()


@attrs.define(eq=False)
class ServedHosts:
    pool: Pool

    async def read(self) -> Served:
        by_host: dict[str, frozenset[UUID]] = {}
        for row in await self.pool.rows(DOMAINS):
            domain = domain_of(row)
            for host in filter(domain.serves_tracking_host, domain.tracking_hosts):
                by_host[host] = by_host.get(host, frozenset()) | {domain.account_id}
        return Served(by_host, frozenset(account_id for (account_id,) in await self.pool.rows(SUSPENDED)))
