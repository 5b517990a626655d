"""Reads the lines of a chain in order, for exports, and puts lines into it that a process of an older release wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.audit import chain
from mailsvc.store.audit.chain import Committed, Link
from mailsvc.store.people.audit import by_operator, kind_of, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

_LINE = Columns.of(
    account_id="a.account_id", seq="a.seq", id="a.id", at="a.at", kind="a.kind", user_id="a.user_id",
    actor="d.actor", address="d.address", action="a.action", subject="d.subject",
    actor_salt="d.actor_salt", address_salt="d.address_salt", subject_salt="d.subject_salt",
    actor_hash="a.actor_hash", address_hash="a.address_hash", subject_hash="a.subject_hash", hash="a.hash",
)  # fmt: skip
LINES = f"""
SELECT {_LINE} FROM audit a LEFT JOIN audit_details d ON d.account_id = a.account_id AND d.id = a.id
WHERE a.account_id = %s AND a.seq > %s AND a.at >= %s ORDER BY a.seq LIMIT %s
"""
LOCK = """
INSERT INTO audit_heads AS h (account_id, seq, hash) VALUES (%s, 0, %s) ON CONFLICT (account_id) DO UPDATE SET seq = h.seq
RETURNING seq, hash
"""
UNCHAINED = "SELECT id, at, user_id, actor, address, action, subject FROM audit WHERE account_id = %s AND hash IS NULL ORDER BY id"
ADOPT = """
UPDATE audit
SET seq = %s, kind = %s, actor = '', address = '', subject = '', actor_hash = %s, address_hash = %s, subject_hash = %s, hash = %s
WHERE account_id = %s AND id = %s
"""
DETAILS = "INSERT INTO audit_details VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
SET_HEAD = "UPDATE audit_heads SET seq = %s, hash = %s WHERE account_id = %s"
COUNTS = """
SELECT account_id, coalesce(kind, 'unknown'), action, count(*) FROM audit WHERE at >= %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
EVER = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class ChainedLine:
    """A line with everything that is needed to verify it. A text that was erased is None, as is its salt."""

    account_id: UUID
    seq: int
    id: UUID
    at: datetime
    kind: str
    user_id: UUID | None
    actor: str | None
    address: str | None
    action: str
    subject: str | None
    actor_salt: bytes | None = attrs.field(repr=False)
    address_salt: bytes | None = attrs.field(repr=False)
    subject_salt: bytes | None = attrs.field(repr=False)
    actor_hash: bytes
    address_hash: bytes
    subject_hash: bytes
    hash: bytes

    def document(self) -> dict[str, Any]:
        """For JSON: times in ISO 8601, bytes in hexadecimal."""
        return {"type": "line"} | {name: _plain(value) for name, value in attrs.asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, UUID):
        return str(value)
    return value.hex() if isinstance(value, bytes) else value


async def lines(pool: Pool, account_id: UUID, after: int, limit: int, since: datetime = EVER) -> list[ChainedLine]:
    """Lines after that number, in order."""
    return [ChainedLine(**_LINE.read(row)) for row in await pool.rows(LINES, (account_id, after, since, limit))]


async def adopt(pool: Pool, account_id: UUID, now: float) -> int:
    """Put all lines of an account that are not in the chain at its end, with a line that says so. Returns how many.

    Only the owner of the table can do this.
    """

    async def adopt(tx: Transaction) -> int:
        [(seq, head)] = await tx.rows(LOCK, (account_id, chain.start(account_id)))
        rows = await tx.rows(UNCHAINED, (account_id,))
        for id_, at, user_id, *texts in rows:
            actor, address, action, subject = texts
            kind = "key" if actor.startswith("API key ") else kind_of(user_id, actor)
            seq, committed = seq + 1, [Committed.to(text) for text in (actor, address, subject)]
            hashes = [each.hash for each in committed]
            head = chain.following(head, Link(account_id, id_, at, user_id, kind, action, *hashes).digest())
            await tx.run(ADOPT, (seq, kind, *hashes, head, account_id, id_))
            await tx.run(DETAILS, (account_id, id_, *(value for each in committed for value in (each.text, each.salt))))
        await tx.run(SET_HEAD, (seq, head, account_id))
        if rows:
            await write(tx, [by_operator(account_id, "audit lines adopted", str(len(rows)))], now)
        return len(rows)

    return await pool.transact(adopt)


async def counts(pool: Pool, since: datetime) -> list[tuple[UUID, str, str, int]]:
    """How many entries of each kind of actor and action each account has since then."""
    return [(account_id, kind, action, count) for account_id, kind, action, count in await pool.rows(COUNTS, (since,))]
