"""Segments (formerly audiences): named groups of contacts. Members: store/audience/members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import definitions
from mailsvc.store.audience.definitions import Restore
from mailsvc.store.audience.values import Confirmation, Full, Segment
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction

COLUMNS = "id, name, confirmation, created_at"
COUNT = "SELECT count(*) FROM segments WHERE account_id = %s AND deleted_at IS NULL"
ADD = f"INSERT INTO segments (account_id, id, name, confirmation, created_at) VALUES (%s, %s, %s, %s, %s) RETURNING {COLUMNS}"
LIST = f"SELECT {COLUMNS} FROM segments WHERE account_id = %s AND deleted_at IS NULL"
GET = f"{LIST} AND id = %s"
LOCKED = f"{LIST} AND id = ANY (%s::uuid[]) ORDER BY id FOR KEY SHARE"
CHANGE = f"""
UPDATE segments SET name = coalesce(%(name)s, name), confirmation = CASE WHEN %(reword)s THEN %(confirmation)s ELSE confirmation END
WHERE account_id = %(account_id)s AND id = %(id)s AND deleted_at IS NULL RETURNING {COLUMNS}
"""
REMOVE = f"UPDATE segments SET deleted_at = %s WHERE account_id = %s AND id = %s AND deleted_at IS NULL RETURNING {COLUMNS}"
RESTORE = f"UPDATE segments SET deleted_at = NULL WHERE account_id = %s AND id = %s AND deleted_at > %s RETURNING {COLUMNS}"


def wording(stored: Mapping[str, Any] | None) -> Confirmation | None:
    return None if stored is None else Confirmation(**stored)


def stored(confirmation: Confirmation | None) -> object:
    return None if confirmation is None else json(attrs.asdict(confirmation))


def segment_of(row: Row) -> Segment:
    id_, name, confirmation, created_at = row
    return Segment(id_, name, wording(confirmation), created_at)


async def locked(tx: Transaction, account_id: UUID, ids: Iterable[UUID]) -> dict[UUID, Segment]:
    """These segments, which are not removed before the transaction ends. Raises Unknown if there is none with an ID."""
    return await definitions.locked(tx, LOCKED, segment_of, account_id, ids, "segment")


@attrs.define(eq=False)
class Segments:
    """At most `most` segments of an account."""

    pool: Pool
    clock: Any
    most: int = 1000

    async def add(self, account_id: UUID, name: str, confirmation: Confirmation | None = None, lines: Sequence[Line] = ()) -> Segment:
        now = utc(self.clock)

        async def put(tx: Transaction) -> Segment:
            await tx.rows(LOCK, (account_id,))
            if (await tx.rows(COUNT, (account_id,)))[0][0] >= self.most:
                raise Full("segments", self.most)
            [row] = await tx.rows(ADD, (account_id, uuid7(now.timestamp()), name, stored(confirmation), now))
            await write(tx, lines, now.timestamp())
            return segment_of(row)

        return await self.pool.transact(put)

    async def list(self, account_id: UUID, page: Page) -> tuple[list[Segment], bool]:
        return await definitions.listed(self.pool, LIST, segment_of, account_id, page)

    async def get(self, account_id: UUID, id_: UUID) -> Segment | None:
        return await definitions.one(self.pool, GET, segment_of, account_id, id_)

    async def change(
        self,
        account_id: UUID,
        id_: UUID,
        name: str | None = None,
        confirmation: Confirmation | None = None,
        *,
        reword: bool = False,
        lines: Sequence[Line] = (),
    ) -> Segment | None:
        """`reword`: whether the double opt-in changes, too; None turns it off."""
        given = {"account_id": account_id, "id": id_, "name": name, "confirmation": stored(confirmation), "reword": reword}
        return await definitions.changed(self.pool, self.clock, CHANGE, given, segment_of, lines)

    async def remove(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Segment | None:
        """The contacts stay. Their memberships are removed later (cleanup)."""
        return await definitions.changed(self.pool, self.clock, REMOVE, (utc(self.clock), account_id, id_), segment_of, lines)

    async def restore(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Segment | None:
        """Undo a deletion: with the contacts that were in it (definitions.restored)."""
        how = Restore("segments", COUNT, RESTORE, segment_of)
        return await definitions.restored(self.pool, self.clock, how, account_id, id_, self.most, lines)
