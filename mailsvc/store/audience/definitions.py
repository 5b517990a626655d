"""What segments, topics and contact properties have in common: rows of an account that are listed, read and changed by their ID.

One that was deleted stays for a few minutes, so that its deletion can be undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience.values import Full, Unknown
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction


class Definition(Protocol):
    @property
    def id(self) -> UUID: ...


T = TypeVar("T")
D = TypeVar("D", bound=Definition)
Read = Callable[[Row], T]

UNDO = timedelta(minutes=10)  # a deletion can be undone for this long
KEPT = UNDO + timedelta(minutes=1)  # until what refers to something deleted is removed (cleanup)


async def _nothing(tx: Transaction, account_id: UUID, found: object, now: datetime) -> None:
    """Nothing else has to be done."""


@attrs.frozen
class Restore(Generic[T]):
    """How to put something back. `count`: how many there are, `then`: what else is done in the same transaction."""

    kind: str
    count: str
    sql: str
    read: Read[T]
    then: Callable[[Transaction, UUID, T, datetime], Awaitable[None]] = _nothing


async def listed(pool: Pool, sql: str, read: Read[T], account_id: UUID, page: Page) -> tuple[list[T], bool]:
    """A page, and whether there are more. `sql` ends in its WHERE clause."""
    end, params = page.where("id")
    found, more = page.cut(await pool.rows(sql + end, (account_id, *params)))
    return [read(row) for row in found], more


async def one(pool: Pool, sql: str, read: Read[T], account_id: UUID, id_: UUID) -> T | None:
    rows = await pool.rows(sql, (account_id, id_))
    return read(rows[0]) if rows else None


async def changed(pool: Pool, clock: Any, sql: str, params: Any, read: Read[T], lines: Sequence[Line]) -> T | None:
    """What a statement changed; None: there was nothing to change, and nothing is written into the audit log."""

    async def change(tx: Transaction) -> T | None:
        rows = await tx.rows(sql, params)
        await write(tx, lines if rows else (), utc(clock).timestamp())
        return read(rows[0]) if rows else None

    return await pool.transact(change)


async def restored(
    pool: Pool, clock: Any, restore: Restore[T], account_id: UUID, id_: UUID, most: int, lines: Sequence[Line]
) -> T | None:  # fmt: skip
    """Put back what was deleted less than UNDO ago. None: it is too late. Raises Full, or errors.Conflict if its key is used again."""
    now = utc(clock)

    async def put(tx: Transaction) -> T | None:
        await tx.rows(LOCK, (account_id,))
        if (await tx.rows(restore.count, (account_id,)))[0][0] >= most:
            raise Full(restore.kind, most)
        rows = await tx.rows(restore.sql, (account_id, id_, now - UNDO))
        if not rows:
            return None
        found = restore.read(rows[0])
        await restore.then(tx, account_id, found, now)
        await write(tx, lines, now.timestamp())
        return found

    return await pool.transact(put)


async def locked(
    tx: Transaction, sql: str, read: Read[D], account_id: UUID, ids: Iterable[UUID], kind: Literal["segment", "topic"]
) -> dict[UUID, D]:
    """Those with these IDs, which are not removed before the transaction ends. Raises Unknown if there is none with an ID."""
    wanted = list(dict.fromkeys(ids))
    rows = await tx.rows(sql, (account_id, wanted)) if wanted else []
    found = {each.id: each for each in map(read, rows)}
    for id_ in wanted:
        if id_ not in found:
            raise Unknown(kind, id_)
    return found
