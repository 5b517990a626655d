"""Removes what refers to deleted segments, topics and properties, in small transactions, then their rows; and old imports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.audience.imports import Imports
from mailsvc.store.in_turn import in_turn
from mailsvc.store.postgres.pool import Pool, Transaction

BATCH = 5000  # rows in a transaction
TURN = 200  # transactions before other work of the same kind gets its turn
DELETED, IMPORTS = 10, 100  # of each kind in one run

# In a random order, so that those that fail every time do not keep the others from their turn.
_DELETED = "SELECT account_id, {id} FROM {table} d WHERE deleted_at <= %s{unless} ORDER BY random() LIMIT %s"
# A broadcast that began before the segment was deleted still reads its members.
_SENT_TO = """
AND NOT EXISTS (
    SELECT FROM broadcasts b
    WHERE b.account_id = d.account_id AND b.segment_id = d.id AND b.status = 'queued' AND b.started_at IS NOT NULL AND b.ended_at IS NULL
)
"""
_LOCK = "SELECT id FROM {table} WHERE account_id = %s AND {id} = %s AND deleted_at IS NOT NULL FOR UPDATE"
_REMOVE = "DELETE FROM {table} WHERE account_id = %s AND {id} = %s AND deleted_at IS NOT NULL"
# Parts of a table by its primary key.
_REFERENCES = """
DELETE FROM {table} WHERE account_id = %s AND {column} = %s AND {key} IN (
    SELECT {key} FROM {table} WHERE account_id = %s AND {column} = %s LIMIT %s
)
"""
CONFIRMATIONS = "DELETE FROM confirmations WHERE account_id = %s AND target_id = %s"
REMEMBERED = "DELETE FROM unsubscribes WHERE account_id = %s AND topic_id = %s"
STRIP = """
WITH part AS MATERIALIZED (
    SELECT id FROM contacts WHERE account_id = %(account_id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s
), stripped AS (
    UPDATE contacts c SET properties = c.properties - %(number)s
    FROM part p WHERE c.account_id = %(account_id)s AND c.id = p.id AND c.properties ? %(number)s
)
SELECT (array_agg(id ORDER BY id DESC))[1], count(*) FROM part
"""
OLD_IMPORTS = "SELECT account_id, id FROM contact_imports WHERE completed_at < %s ORDER BY random() LIMIT %s"
OLD_UPLOADS = "SELECT account_id, id FROM contact_imports WHERE status = 'uploaded' AND created_at < %s ORDER BY random() LIMIT %s"
REMOVE_IMPORT = "DELETE FROM contact_imports WHERE account_id = %s AND id = %s"
NOBODY = UUID(int=0)


@attrs.frozen
class References:
    """Where a table is referred to. `column` refers to it; `key` tells the rows apart."""

    table: str
    column: str
    key: str


@attrs.define(eq=False)
class Cleanup:
    pool: Pool
    imports: Imports

    async def run(self, imports_before: datetime, uploads_before: datetime, deleted_before: datetime) -> None:
        """`imports_before`: of those that ended. `uploads_before`: of files whose import was not started.

        `deleted_before`: when segments, topics and properties were deleted whose deletion can no longer be undone.
        """
        members = partial(self._forget, "segments", References("contact_segments", "segment_id", "contact_id"), (CONFIRMATIONS,))
        choices = partial(self._forget, "topics", References("contact_topics", "topic_id", "contact_id"), (CONFIRMATIONS, REMEMBERED))
        works: Sequence[tuple[str, datetime, int, Callable[[UUID, Any], Awaitable[object]]]] = (
            (_DELETED.format(table="segments", id="id", unless=_SENT_TO), deleted_before, DELETED, members),
            (_DELETED.format(table="topics", id="id", unless=""), deleted_before, DELETED, choices),
            (_DELETED.format(table="contact_properties", id="number", unless=""), deleted_before, DELETED, self._forget_property),
            (OLD_IMPORTS, imports_before, IMPORTS, self._forget_import),
            (OLD_UPLOADS, uploads_before, IMPORTS, self.imports.discard),
        )
        await in_turn([partial(self._each, *work) for work in works])

    async def _each(self, sql: str, before: datetime, most: int, work: Callable[[UUID, Any], Awaitable[object]]) -> None:
        await in_turn([partial(work, account_id, id_) for account_id, id_ in await self.pool.rows(sql, (before, most))])

    async def _forget(self, table: str, references: References, more: Sequence[str], account_id: UUID, id_: UUID) -> None:
        if await self._empty(references, account_id, id_):
            await self._remove(table, "id", account_id, id_, (_references(references), *more))

    async def _forget_property(self, account_id: UUID, number: int) -> None:
        if await self._strip(account_id, str(number)):
            await self._remove("contact_properties", "number", account_id, number, ())

    async def _forget_import(self, account_id: UUID, import_id: UUID) -> None:
        if await self._empty(References("contact_import_errors", "import_id", "line"), account_id, import_id):
            await self.pool.run(REMOVE_IMPORT, (account_id, import_id))

    async def _empty(self, references: References, account_id: UUID, id_: UUID) -> bool:
        """Whether nothing is left; otherwise there is more for the next run."""
        sql = _references(references)
        for _ in range(TURN):
            if not await self.pool.run(sql, (account_id, id_, account_id, id_, BATCH)):
                return True
        return False

    async def _strip(self, account_id: UUID, number: str) -> bool:
        """Whether no contact has a value of the property any more."""
        after = NOBODY
        while True:
            values = {"account_id": account_id, "after": after, "limit": BATCH, "number": number}
            [(last, count)] = await self.pool.rows(STRIP, values)
            if count < BATCH:
                return True
            after = last

    async def _remove(self, table: str, id_name: str, account_id: UUID, id_: object, last: Sequence[str]) -> None:
        """Lock the row, so that nobody can still be writing a reference, remove the last ones, and the row."""

        async def take(tx: Transaction) -> None:
            if await tx.rows(_LOCK.format(table=table, id=id_name), (account_id, id_)):
                for sql in last:
                    await tx.run(sql, (account_id, id_) * (sql.count("%s") // 2) + ((BATCH,) if sql.count("%s") % 2 else ()))
                await tx.run(_REMOVE.format(table=table, id=id_name), (account_id, id_))

        await self.pool.transact(take)


def _references(references: References) -> str:
    return _REFERENCES.format(table=references.table, column=references.column, key=references.key)
