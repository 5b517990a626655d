"""What happened to an account's emails by the mail domain of the recipient, for a bounded number of the newest emails of a period."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.search import SERVICE
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import statement

LOOKED = 2000  # emails
SCANNED = 50_000  # emails that are scanned for those of one sending domain

_COUNTS = statement("mailsvc.store.mail", "recipient_domains", service=SERVICE)


@attrs.frozen
class DomainCounts:
    """Recipients at a mail domain, by what happened. `deferred`: at least once, whatever happened after."""

    name: str
    delivered: int
    bounced: int
    deferred: int
    complained: int


@attrs.define(eq=False)
class RecipientDomains:
    pool: Pool

    async def counts(
        self, account_id: UUID, since: datetime, until: datetime, domain_id: UUID | None = None
    ) -> tuple[Sequence[DomainCounts], int | None]:  # fmt: skip
        """And of how many of the newest emails; None: of all emails of the period. `domain_id`: only mail from this sending domain."""
        named = {"account": account_id, "since": uuid7_floor(since), "until": uuid7_floor(until), "domain": domain_id}
        most = LOOKED if domain_id is None else SCANNED
        rows = await self.pool.rows(_COUNTS, {**named, "looked": LOOKED, "scanned": most})
        newest, scanned = rows[0][:2]
        looked = LOOKED if newest >= LOOKED else most if scanned >= most else None
        return [DomainCounts(*row[2:]) for row in rows if row[2] is not None], looked
