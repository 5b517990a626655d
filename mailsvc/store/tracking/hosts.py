"""Reads which hosts serve tracked links, and which accounts are suspended.

Of all accounts at once, and often: the server selects the hosts, because reading 20,000 domains as values takes the reactor two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import attrs

from mailsvc.store.domains.values import SERVING, TRACKING
from mailsvc.store.postgres.pool import Pool

# As Domain.serves_tracking_host.
HOSTS = """
SELECT h.name, d.account_id
FROM domains d CROSS JOIN unnest(d.tracking_subdomains) AS l(label) CROSS JOIN LATERAL (SELECT l.label || '.' || d.name AS name) h
WHERE d.tracking_subdomains <> '{}' AND EXISTS (
    SELECT FROM jsonb_array_elements(d.records) r WHERE r ->> 'purpose' = %s AND r ->> 'name' = h.name AND r ->> 'status' = ANY (%s)
)
"""
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
        for host, account_id in await self.pool.rows(HOSTS, (TRACKING, [*SERVING])):
            by_host[host] = by_host.get(host, frozenset()) | {account_id}
        return Served(by_host, frozenset(account_id for (account_id,) in await self.pool.rows(SUSPENDED)))
