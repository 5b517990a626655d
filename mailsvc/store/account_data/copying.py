"""Reads all rows of an account, table by table, for an archive. Writing the archive: accounts/archive.

Emails that are queued, or accepted while it reads, are left out with all that belongs to them: this installation delivers them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.account_data import tables
from mailsvc.store.account_data.secrets import encrypt_again
from mailsvc.store.encryption.body_keys import TABLE as BODY_KEYS
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.statements import Shape

BATCH = 500  # rows
# Tables with large rows.
LARGE = {"messages": 10, "attempts": 100, "webhook_messages": 100, "request_log": 100, "receipts": 100, "images": 2}
_ACCOUNT = "SELECT to_jsonb(a) - '{number,pool}'::text[] FROM accounts a WHERE a.id = %s"
_MEMBERS = """
SELECT jsonb_build_object('user_id', u.id, 'email', u.email, 'name', u.name, 'role', m.role, 'created_at', m.created_at)
FROM members m JOIN users u ON u.id = m.user_id WHERE m.account_id = %s ORDER BY u.id
"""
_QUEUED = "SELECT DISTINCT email_id FROM queue WHERE account_id = %s LIMIT %s"
_SENDING = "SELECT count(*) FROM broadcasts WHERE account_id = %s AND status = 'queued'"
# The audit log grows meanwhile. Lines that are written after its head was read are left out, because that head does not cover them.
_HEAD = "SELECT to_jsonb(h), h.seq FROM audit_heads h WHERE h.account_id = %s"
_OF_CHAIN = {
    "audit": "coalesce(t.seq, 0) <= %(seq)s",
    "audit_details": "NOT EXISTS (SELECT FROM audit a WHERE a.account_id = t.account_id AND a.id = t.id AND a.seq > %(seq)s)",
}
_OF_EMAILS = ("emails", "messages", "events", "event_log", "attempts", "hits", "broadcast_recipients")
_FINISHED = "t.email_id < %(before)s AND t.email_id <> ALL (%(queued)s)"
MOST_QUEUED = 100_000  # emails

Rows = Sequence[Mapping[str, Any]]


@attrs.define(eq=False)
class Copying:
    """One account. Its secrets come out encrypted with the key of the archive, `transfer`."""

    pool: Pool
    account_id: UUID
    encryption: Encryption
    transfer: Encryption
    bodies: BodyKeys
    _queued: Sequence[UUID] = attrs.field(default=(), init=False)
    _before: UUID = attrs.field(default=UUID(int=0), init=False)
    _seq: int = attrs.field(default=0, init=False)

    async def begin(self, now: datetime) -> tuple[int, int]:
        """How many emails are queued (`MOST_QUEUED` + 1: more), and how many broadcasts are being sent. Neither goes on elsewhere."""
        self._before = uuid7_floor(now)
        self._queued = [email_id for (email_id,) in await self.pool.rows(_QUEUED, (self.account_id, MOST_QUEUED + 1))]
        [(broadcasts,)] = await self.pool.rows(_SENDING, (self.account_id,))
        return len(self._queued), broadcasts

    async def batches(self) -> AsyncIterator[tuple[str, Rows]]:
        """Tables in the order in which they have to be inserted, each in batches of rows."""
        heads = await self.pool.rows(_HEAD, (self.account_id,))
        self._seq = heads[0][1] if heads else 0
        yield "accounts", [row for (row,) in await self.pool.rows(_ACCOUNT, (self.account_id,))]
        yield "members", [row for (row,) in await self.pool.rows(_MEMBERS, (self.account_id,))]
        for shape in await tables.shapes(self.pool, tables.ARCHIVED):
            if shape.name == "audit_heads":
                yield shape.name, [head for head, _ in heads]
                continue
            async for rows in self._table(shape):
                yield shape.name, rows

    async def _table(self, shape: Shape) -> AsyncIterator[Rows]:
        size = LARGE.get(shape.name, BATCH)
        after: Mapping[str, Any] | None = None
        while True:
            values: dict[str, Any] = {"account": self.account_id, "size": size, "before": self._before, "queued": list(self._queued)}
            values["seq"] = self._seq
            values |= {f"after_{key}": value for key, value in (after or {}).items()}
            also = _FINISHED if shape.name in _OF_EMAILS else _OF_CHAIN.get(shape.name, "true")
            found = await self.pool.rows(statements.following(shape, after is not None, also), values)
            rows = [row for row, *_ in found]
            for row in rows:
                encrypt_again(shape.name, row, self.encryption, self.transfer)
                if shape.name == BODY_KEYS:
                    await self.bodies.exported(row, self.transfer)
            if rows:
                yield rows
            if len(found) < size:
                return
            after = dict(zip(shape.keys, found[-1][1:], strict=True))
