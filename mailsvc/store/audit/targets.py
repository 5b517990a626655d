"""Records how far the audit log was sent to each external destination, and which process sends it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.audit.reading import ChainedLine, lines
from mailsvc.store.postgres.pool import Pool

TAKE = """
INSERT INTO audit_targets AS t (name, holder, until) VALUES (%(name)s, %(holder)s, %(until)s)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE t.holder = excluded.holder OR t.until < %(now)s
RETURNING anchor
"""
PENDING = """
SELECT h.account_id, coalesce(s.seq, 0)
FROM audit_heads h LEFT JOIN audit_sent s ON s.account_id = h.account_id AND s.target = %s
WHERE h.seq > coalesce(s.seq, 0) ORDER BY h.account_id LIMIT %s
"""
SENT = """
INSERT INTO audit_sent AS s (account_id, target, seq)
SELECT account_id, %s, seq FROM unnest(%s::uuid[], %s::bigint[]) AS n (account_id, seq)
ON CONFLICT (account_id, target) DO UPDATE SET seq = greatest(s.seq, excluded.seq)
"""
ANCHORED = "UPDATE audit_targets SET anchor = greatest(anchor, %s) WHERE name = %s"
COUNT = """
SELECT coalesce(sum(h.seq - coalesce(s.seq, 0)), 0)::bigint
FROM audit_heads h LEFT JOIN audit_sent s ON s.account_id = h.account_id AND s.target = %s
"""


@attrs.define(eq=False)
class Target:
    """`holder`: this process."""

    pool: Pool
    name: str
    holder: UUID

    async def take(self, now: datetime, until: datetime) -> int | None:
        """The last anchor that was sent; None while another process sends."""
        given: Mapping[str, Any] = {"name": self.name, "holder": self.holder, "now": now, "until": until}
        rows = await self.pool.rows(TAKE, given)
        return rows[0][0] if rows else None

    async def pending(self, limit: int) -> list[ChainedLine]:
        """Up to `limit` lines that were not sent yet, those of an account in order."""
        found: list[ChainedLine] = []
        for account_id, sent in await self.pool.rows(PENDING, (self.name, limit)):
            found += await lines(self.pool, account_id, sent, limit - len(found))
            if len(found) >= limit:
                break
        return found

    async def sent(self, done: list[ChainedLine]) -> None:
        last = {line.account_id: line.seq for line in done}
        await self.pool.run(SENT, (self.name, list(last), list(last.values())))

    async def sent_anchor(self, number: int) -> None:
        await self.pool.run(ANCHORED, (number, self.name))

    async def unsent(self) -> int:
        """How many lines were not sent yet."""
        [(count,)] = await self.pool.rows(COUNT, (self.name,))
        return int(count)
