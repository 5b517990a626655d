"""The audit log of an account: who did what, and from where. Entries are only added.

A line is written in the transaction of its change, so neither exists without the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.connection import Params
from mailsvc.store.postgres.pool import Pool, Transaction

COLUMNS = "account_id, id, at, user_id, actor, address, action, subject"
ADD = f"INSERT INTO audit ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
# The key's name is read with the change, so the log has its name at that time.
ADD_BY_KEY = f"""
INSERT INTO audit ({COLUMNS})
SELECT %s, %s, %s, %s, 'API key ' || k.name || ' (' || k.hint || '…)', %s, %s, %s FROM api_keys k WHERE k.id = %s
"""
ADD_EVERYWHERE = f"INSERT INTO audit ({COLUMNS}) SELECT m.account_id, %s, %s, %s, %s, %s, %s, %s FROM members m WHERE m.user_id = %s"
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


@attrs.frozen
class Line:
    """A new entry for the log of `account_id`, or of every account that `person` is a member of.

    `key_id`: the API key that made the change, which becomes the actor.
    """

    account_id: UUID | None
    person: UUID | None
    user_id: UUID | None
    actor: str
    address: str
    action: str
    subject: str = ""
    key_id: UUID | None = None


class Audit:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def add(self, account_id: UUID, user_id: UUID | None, actor: str, address: str, action: str, subject: str = "") -> None:
        await self.write(Line(account_id, None, user_id, actor, address, action, subject))

    async def write(self, line: Line) -> None:
        """Write an entry without a change in the database."""
        await self._pool.transact(lambda tx: write(tx, [line], unix(self._clock)))

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None) -> tuple[list[Entry], bool]:
        """Newest first, older than `after`, and whether there are more."""
        rows = await self._pool.rows(OLDER, (account_id, after, after, limit + 1))
        return [Entry(*row) for row in rows[:limit]], len(rows) > limit

    async def all(self, account_id: UUID) -> AsyncIterator[Sequence[Entry]]:
        """The whole log in pages, newest first."""
        after: UUID | None = None
        more = True
        while more:
            page, more = await self.list(account_id, PAGE, after)
            if page:
                after = page[-1].id
                yield page


async def write(tx: Transaction, lines: Sequence[Line], now: float) -> None:
    for line in lines:
        row = (
            uuid7(now),
            datetime.fromtimestamp(now, UTC),
            line.user_id,
            line.actor[:320],
            line.address[:100],
            line.action,
            line.subject[:500],
        )
        if line.person is not None:
            await tx.run(ADD_EVERYWHERE, (*row, line.person))
        elif line.key_id is not None:
            id_, at, user_id, _, *rest = row
            await tx.run(ADD_BY_KEY, (line.account_id, id_, at, user_id, *rest, line.key_id))
        else:
            await tx.run(ADD, (line.account_id, *row))


async def changed(pool: Pool, now: float, lines: Sequence[Line], sql: str, params: Params) -> int:
    """Run a statement, and write the lines if it changed rows. Returns how many."""
    if not lines:
        return await pool.run(sql, params)

    async def change(tx: Transaction) -> int:
        count = await tx.run(sql, params)
        if count:
            await write(tx, lines, now)
        return count

    return await pool.transact(change)
