"""The audit log of an account: what was done in it, by whom, from where. Only ever added to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7
from mailsvc.store.pool import Pool

ADD = "INSERT INTO audit (account_id, id, at, user_id, actor, address, action, subject) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
OLDER = """
SELECT id, at, actor, address, action, subject FROM audit
WHERE account_id = %s AND (%s::uuid IS NULL OR id < %s) ORDER BY id DESC LIMIT %s
"""
PAGE = 500


@attrs.frozen
class Entry:
    id: UUID
    at: datetime
    actor: str
    address: str
    action: str
    subject: str


class Audit:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def add(self, account_id: UUID, user_id: UUID | None, actor: str, address: str, action: str, subject: str = "") -> None:
        now = self._clock.seconds()
        row = (account_id, uuid7(now), datetime.fromtimestamp(now, UTC), user_id, actor[:320], address[:100], action, subject[:500])
        await self._pool.run(ADD, row)

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None) -> tuple[list[Entry], bool]:
        """Newest first, older than `after`; and whether there are more."""
        rows = await self._pool.rows(OLDER, (account_id, after, after, limit + 1))
        return [Entry(*row) for row in rows[:limit]], len(rows) > limit

    async def all(self, account_id: UUID) -> AsyncIterator[Sequence[Entry]]:
        """The whole of it, newest first, a page at a time."""
        after: UUID | None = None
        more = True
        while more:
            page, more = await self.list(account_id, PAGE, after)
            if page:
                after = page[-1].id
                yield page
