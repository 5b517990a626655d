"""What the operator is notified of: source addresses that got onto a block list, and domains for which mail of this service fails DMARC.

What the notifications say: accounts/operator_alerts. Who writes these rows: store/queue/sources and store/domains/reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from mailsvc.store.domains.reports import ALERT
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import ABSENT
from mailsvc.store.sql import Columns

QUIET = timedelta(days=7)  # without a failure, after which another one is a new event

_LISTED = Columns.named("region", "address", "pool", "listed", "listed_at")
LISTED = f"""
SELECT {_LISTED} FROM sources WHERE listed_at >= %(since)s AND seen_at >= %(seen)s ORDER BY listed_at, region, address LIMIT %(most)s
"""
_FAILING = Columns.of(domain="d.name", account="a.name", number="a.number", at="h.at", what="h.what", domain_id="d.id::text")
FAILING = f"""
SELECT {_FAILING}
FROM domain_history h JOIN domains d ON d.id = h.domain_id JOIN accounts a ON a.id = d.account_id
WHERE h.id >= %(since)s AND h.what LIKE '%% {ALERT}' AND NOT EXISTS (
    SELECT FROM domain_history e WHERE e.domain_id = h.domain_id AND e.id >= %(before)s AND e.id < h.id AND e.what LIKE '%% {ALERT}'
)
ORDER BY h.id LIMIT %(most)s
"""


@attrs.frozen
class ListedSource:
    """A source address of a region, and the block lists that have it since `listed_at`."""

    region: str
    address: str
    pool: str
    listed: Sequence[str]
    listed_at: datetime


@attrs.frozen
class FailingDomain:
    """A domain of an account. `what`: a sentence with the reporter and the number of emails that failed."""

    domain: str
    account: str
    number: int
    at: datetime
    what: str
    domain_id: str


@attrs.define(eq=False)
class AlertStore:
    pool: Pool

    async def listed(self, since: datetime, now: datetime, most: int) -> list[ListedSource]:
        """Sources in use that got onto a block list since then and are still on it, the first ones."""
        named = {"since": since, "seen": now - ABSENT, "most": most}
        return [ListedSource(**_LISTED.read(row)) for row in await self.pool.rows(LISTED, named)]

    async def failing(self, since: datetime, most: int) -> list[FailingDomain]:
        """Domains for which mail of this service was first reported as failing since then, the first ones."""
        named = {"since": uuid7_floor(since), "before": uuid7_floor(since - QUIET), "most": most}
        return [FailingDomain(**_FAILING.read(row)) for row in await self.pool.rows(FAILING, named)]
