"""Images that were uploaded for broadcasts: adding one within the account's limit, listing, reading, deleting."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.sql import Columns

Kind = Literal["png", "jpeg", "gif", "webp"]

_SAME = "SELECT id FROM images WHERE account_id = %s AND hash = %s"
_USED = "SELECT coalesce(sum(bytes), 0) FROM images WHERE account_id = %s"
# Prepared statements send and return the content as it is. The driver would convert it to hex and back, in one turn of the reactor.
_ADD = Prepared(
    "add_image",
    ("uuid", "uuid", "bytea", "text", "integer", "integer", "integer", "timestamptz", "bytea"),
    """
    INSERT INTO images (account_id, id, hash, kind, width, height, bytes, created_at, content) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    """,
)
_CONTENT = Prepared("image", ("uuid", "uuid"), "SELECT kind, content FROM images WHERE account_id = $1 AND id = $2")
_LISTED = Columns.named("id", "kind", "width", "height", "bytes", "created_at")
_LIST = f"SELECT {_LISTED} FROM images WHERE account_id = %s"
_DELETE = "DELETE FROM images WHERE account_id = %s AND id = %s"


@attrs.frozen(kw_only=True)
class Picture:
    """An image that can be stored: decoded and encoded by us."""

    kind: Kind
    width: int
    height: int
    content: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Image:
    id: UUID
    kind: Kind
    width: int
    height: int
    bytes: int
    created_at: datetime


@attrs.define(eq=False)
class Images:
    """`lines` are for the audit log."""

    pool: Pool
    clock: Any

    async def add(self, account_id: UUID, picture: Picture, most: int, lines: Sequence[Line] = ()) -> UUID | None:
        """Its ID, which is the same if the account has this image already. None: the account's images would have more than `most` bytes."""
        content, now = picture.content, utc(self.clock)
        digest = hashlib.sha256(content).digest()

        async def add(tx: Transaction) -> UUID | None:
            await tx.rows(LOCK, (account_id,))
            for (id_,) in await tx.rows(_SAME, (account_id, digest)):
                return id_  # type: ignore[no-any-return]
            [(used,)] = await tx.rows(_USED, (account_id,))
            if used + len(content) > most:
                return None
            id_ = uuid7(now.timestamp())
            row = account_id, id_, digest, picture.kind, picture.width, picture.height, len(content), now, content
            await tx.run(_ADD, row)
            await write(tx, lines, now.timestamp())
            return id_

        return await self.pool.transact(add)

    async def list(self, account_id: UUID, page: Page) -> tuple[list[Image], bool]:
        """Without their content, and whether there are more."""
        end, params = page.where("id")
        found, more = page.cut(await self.pool.rows(_LIST + end, (account_id, *params)))
        return [Image(**_LISTED.read(row)) for row in found], more

    async def used(self, account_id: UUID) -> int:
        """Bytes of all the account's images."""
        return int((await self.pool.rows(_USED, (account_id,)))[0][0])

    async def content(self, account_id: UUID, image_id: UUID) -> tuple[Kind, bytes] | None:
        rows = await self.pool.rows(_CONTENT, (account_id, image_id))
        return (rows[0][0], rows[0][1]) if rows else None

    async def delete(self, account_id: UUID, image_id: UUID, lines: Sequence[Line] = ()) -> bool:
        return await changed(self.pool, utc(self.clock).timestamp(), lines, _DELETE, (account_id, image_id)) > 0
