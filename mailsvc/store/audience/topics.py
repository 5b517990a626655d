"""Topics: kinds of mail that a contact can choose. The choices: store/audience/choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import definitions, notices
from mailsvc.store.audience.definitions import Restore
from mailsvc.store.audience.segments import stored, wording
from mailsvc.store.audience.values import Confirmation, Full, Topic
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

COLUMNS = Columns.named("id", "name", "description", "subscribed", "public", "confirmation", "created_at", "updated_at")
COUNT = "SELECT count(*) FROM topics WHERE account_id = %s AND deleted_at IS NULL"
ADD = f"""
INSERT INTO topics (account_id, id, name, description, subscribed, public, confirmation, created_at, updated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING {COLUMNS}
"""
LIST = f"SELECT {COLUMNS} FROM topics WHERE account_id = %s AND deleted_at IS NULL"
GET = f"{LIST} AND id = %s"
LOCKED = f"{LIST} AND id = ANY (%s::uuid[]) ORDER BY id FOR KEY SHARE"
FOR_CHANGE = f"{GET} FOR NO KEY UPDATE"
CHANGE = f"""
UPDATE topics SET name = %s, description = %s, public = %s, confirmation = %s, updated_at = %s
WHERE account_id = %s AND id = %s RETURNING {COLUMNS}
"""
REMOVE = f"""
UPDATE topics SET deleted_at = %s, updated_at = %s WHERE account_id = %s AND id = %s AND deleted_at IS NULL RETURNING {COLUMNS}
"""
# Broadcasts about it are paused at once, because their queued emails wait from now on, each for an hour (delivery/attempt). A process that
# is working on one loses its claim and writes nothing more.
STOP = """
UPDATE broadcasts SET next_at = %(now)s
WHERE account_id = %(account_id)s AND topic_id = %(id)s AND status = 'queued' AND started_at IS NOT NULL AND next_at > %(now)s
"""
# Its `updated_at` stays that of the deletion, which was a change.
RESTORE = f"UPDATE topics SET deleted_at = NULL WHERE account_id = %s AND id = %s AND deleted_at > %s RETURNING {COLUMNS}"


def topic_of(row: Row) -> Topic:
    values = COLUMNS.read(row)
    return Topic(**values | {"confirmation": wording(values["confirmation"])})


async def locked(tx: Transaction, account_id: UUID, ids: Iterable[UUID]) -> dict[UUID, Topic]:
    """These topics, which are not removed before the transaction ends. Raises Unknown if there is none with an ID."""
    return await definitions.locked(tx, LOCKED, topic_of, account_id, ids, "topic")


@attrs.define(eq=False)
class Topics:
    """At most `most` topics of an account."""

    pool: Pool
    clock: Any
    most: int = 100

    async def add(
        self,
        account_id: UUID,
        name: str,
        subscribed: bool,
        description: str | None = None,
        public: bool = False,
        confirmation: Confirmation | None = None,
        lines: Sequence[Line] = (),
    ) -> Topic:
        now = utc(self.clock)

        async def put(tx: Transaction) -> Topic:
            await tx.rows(LOCK, (account_id,))
            if (await tx.rows(COUNT, (account_id,)))[0][0] >= self.most:
                raise Full("topics", self.most)
            values = (name, description, subscribed, public, stored(confirmation), now, now)
            [row] = await tx.rows(ADD, (account_id, uuid7(now.timestamp()), *values))
            return await self._told(tx, account_id, "created", row, lines)

        return await self.pool.transact(put)

    async def list(self, account_id: UUID, page: Page) -> tuple[list[Topic], bool]:
        return await definitions.listed(self.pool, LIST, topic_of, account_id, page)

    async def get(self, account_id: UUID, id_: UUID) -> Topic | None:
        return await definitions.one(self.pool, GET, topic_of, account_id, id_)

    async def change(self, account_id: UUID, id_: UUID, changes: dict[str, Any], lines: Sequence[Line] = ()) -> Topic | None:
        """`changes`: new values of name, description, public and confirmation."""

        async def change(tx: Transaction) -> Topic | None:
            rows = await tx.rows(FOR_CHANGE, (account_id, id_))
            if not rows:
                return None
            before = topic_of(rows[0])
            new = attrs.evolve(before, **changes)
            if new == before:
                await write(tx, lines, utc(self.clock).timestamp())
                return before
            values = (new.name, new.description, new.public, stored(new.confirmation), utc(self.clock))
            [row] = await tx.rows(CHANGE, (*values, account_id, id_))
            return await self._told(tx, account_id, "updated", row, lines)

        return await self.pool.transact(change)

    async def remove(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Topic | None:
        """Broadcasts about it are paused; the choices are removed later (cleanup)."""

        async def take(tx: Transaction) -> Topic | None:
            now = utc(self.clock)
            rows = await tx.rows(REMOVE, (now, now, account_id, id_))
            await tx.run(STOP, {"now": now, "account_id": account_id, "id": id_})
            return await self._told(tx, account_id, "deleted", rows[0], lines) if rows else None

        return await self.pool.transact(take)

    async def restore(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Topic | None:
        """Undo a deletion: with the choices of contacts (definitions.restored). Its event is `topic.created`."""
        how = Restore("topics", COUNT, RESTORE, topic_of, _created)
        return await definitions.restored(self.pool, self.clock, how, account_id, id_, self.most, lines)

    async def _told(self, tx: Transaction, account_id: UUID, kind: str, row: Row, lines: Sequence[Line]) -> Topic:
        now, changed = utc(self.clock), topic_of(row)
        await notices.topic(tx, account_id, kind, changed, now)
        await write(tx, lines, now.timestamp())
        return changed


async def _created(tx: Transaction, account_id: UUID, found: Topic, now: datetime) -> None:
    await notices.topic(tx, account_id, "created", found, now)
