"""Suppressions: the addresses that an account must not write to, why, and since when.

They are compared in lower case. What they do is done where emails are accepted (store/mail/inserts) and where scheduled ones are
released (store/queue/claims_sql); a bounce puts its address here by the statement that settles it (store/queue/settle_sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.inserts import Hashes
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Origin = Literal["bounce", "complaint", "manual"]

COLUMNS = Columns.named("id", "email", "origin", "source_id", "reason", "created_at")


def data_of(table: str) -> str:
    """The data of the event about a row of `table`, as SQL."""
    return (
        f"jsonb_build_object('id', {table}.id, 'email', {table}.email, 'origin', {table}.origin, 'source_id', {table}.source_id,"
        f""" 'created_at', to_char({table}.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))"""
    )


# Sorted, so that concurrent adds of the same addresses cannot deadlock.
ADD = f"""
INSERT INTO suppressions AS s (id, account_id, address, email, origin, source_id, reason, created_at)
SELECT DISTINCT ON (lower(g.email)) g.id, %s, lower(g.email), g.email, %s, %s, %s, %s
FROM unnest(%s::uuid[], %s::text[]) AS g(id, email) ORDER BY lower(g.email), g.id
ON CONFLICT (account_id, address) DO NOTHING
RETURNING {COLUMNS}, {data_of("s")}
"""
NAMED = f"""
SELECT {COLUMNS.of_table("s")} FROM unnest(%s::text[]) WITH ORDINALITY AS g(email, number)
JOIN suppressions s ON s.account_id = %s AND s.address = lower(g.email) ORDER BY g.number
"""
KNOWN = "SELECT address FROM suppressions WHERE account_id = %s AND address = ANY (%s)"
GET = f"SELECT {COLUMNS} FROM suppressions WHERE account_id = %s AND id = %s"
REMOVE = f"""
DELETE FROM suppressions s
WHERE s.account_id = %s AND (s.id = ANY (%s::uuid[]) OR s.address = ANY (ARRAY(SELECT lower(g) FROM unnest(%s::text[]) g)))
RETURNING {COLUMNS}, {data_of("s")}
"""
_LIST = f"SELECT {COLUMNS} FROM suppressions WHERE account_id = %(account_id)s AND (%(origin)s IS NULL OR origin = %(origin)s)"
OLDER = f"{_LIST} AND (%(after)s IS NULL OR id < %(after)s) ORDER BY id DESC LIMIT %(limit)s"
_ERASED = "WHERE account_id = %s AND hash = ANY (%s::bytea[])"
ERASED = f"SELECT id, origin, created_at FROM erased_suppressions {_ERASED} LIMIT 1"
REMOVE_ERASED = f"DELETE FROM erased_suppressions {_ERASED} RETURNING id, origin, created_at"
NEWER = f"{_LIST} AND id > %(before)s ORDER BY id LIMIT %(limit)s"
SCANNED = 20_000  # suppressions that one search looks at
SEARCH = f"""
WITH looked AS MATERIALIZED (
    {_LIST} AND (%(after)s IS NULL OR id < %(after)s) ORDER BY id DESC LIMIT {SCANNED}
), edge AS (SELECT count(*) AS n, (array_agg(id ORDER BY id))[1] AS last_id FROM looked),
hits AS (SELECT * FROM looked WHERE strpos(lower(email), %(text)s) > 0 ORDER BY id DESC LIMIT %(limit)s)
SELECT {COLUMNS}, n, last_id FROM edge LEFT JOIN hits ON true ORDER BY id DESC
"""


@attrs.frozen
class Suppression:
    """A suppressed address. `source_id`: the email that caused it; `reason`: the reply or report. Both None if added manually."""

    id: UUID
    email: str
    origin: Origin
    source_id: UUID | None
    reason: str | None
    created_at: datetime


async def add(
    tx: Transaction, account_id: UUID, emails: Sequence[str], origin: Origin, now: datetime,
    source_id: UUID | None = None, reason: str | None = None,
) -> None:  # fmt: skip
    """Add addresses that are not suppressed yet, with their events, within the caller's transaction."""
    ids = [uuid7(now.timestamp()) for _ in emails]
    rows = await tx.rows(ADD, (account_id, origin, source_id, reason, now, ids, list(emails)))
    await _write_events(tx, account_id, "suppression.added", now, rows)


class Suppressions:
    """`hashes`: to recognize addresses that were erased. They are not in lists, but are found and removed by the address."""

    def __init__(self, pool: Pool, clock: Any, hashes: Hashes | None = None) -> None:
        self._pool = pool
        self._hashes = hashes
        self._clock = clock

    async def add(
        self, account_id: UUID, emails: Sequence[str], lines: Sequence[Line] = (), origin: Origin = "manual", reason: str | None = None
    ) -> list[Suppression]:
        """Add addresses manually, or with an origin that is known from elsewhere. Returns the entry of each, including existing ones."""
        now = self._now()

        async def put(tx: Transaction) -> list[Suppression]:
            await write(tx, lines, now.timestamp())
            rows: Sequence[Row] = ()
            while len(rows) < len(emails):  # again if somebody removed an existing entry between the two statements
                await add(tx, account_id, emails, origin, now, reason=reason)
                rows = await tx.rows(NAMED, (list(emails), account_id))
            return [_suppression(row) for row in rows]

        return await self._pool.transact(put)

    async def get(self, account_id: UUID, id_: UUID) -> Suppression | None:
        rows = await self._pool.rows(GET, (account_id, id_))
        return _suppression(rows[0]) if rows else None

    async def named(self, account_id: UUID, email: str) -> Suppression | None:
        rows = await self._pool.rows(NAMED, ([email], account_id))
        if rows or self._hashes is None:
            return _suppression(rows[0]) if rows else None
        erased = await self._pool.rows(ERASED, (account_id, list(self._hashes(email).values())))
        return _erased(email, erased[0]) if erased else None

    async def known(self, account_id: UUID, addresses: Sequence[str]) -> set[str]:
        """Those that are suppressed, of addresses in lower case."""
        return {address for (address,) in await self._pool.rows(KNOWN, (account_id, list(addresses)))}

    async def remove(
        self, account_id: UUID, ids: Sequence[UUID] = (), emails: Sequence[str] = (), lines: Sequence[Line] = ()
    ) -> list[Suppression]:
        """Remove entries, and those of the same addresses that were erased. Returns those that existed, one for each address."""
        now = self._now()

        async def take(tx: Transaction) -> list[Suppression]:
            rows = await tx.rows(REMOVE, (account_id, list(ids), list(emails)))
            await _write_events(tx, account_id, "suppression.removed", now, rows)
            removed = [_suppression(row[:-1]) for row in rows]
            if self._hashes is not None:
                there = {each.email.lower() for each in removed}
                for email in {each.lower(): each for each in (*(one.email for one in removed), *emails)}.values():
                    erased = await tx.rows(REMOVE_ERASED, (account_id, list(self._hashes(email).values())))
                    removed += [_erased(email, row) for row in erased[:1] if email.lower() not in there]
            await write(tx, lines if removed else (), now.timestamp())
            return removed

        return await self._pool.transact(take)

    async def restore(self, account_id: UUID, removed: Suppression, lines: Sequence[Line] = ()) -> bool:
        """Undo a removal: the same entry as before, unless the address was added again."""
        now = self._now()

        async def put(tx: Transaction) -> bool:
            row = (removed.origin, removed.source_id, removed.reason, removed.created_at, [removed.id], [removed.email])
            rows = await tx.rows(ADD, (account_id, *row))
            await _write_events(tx, account_id, "suppression.added", now, rows)
            await write(tx, lines if rows else (), now.timestamp())
            return bool(rows)

        return await self._pool.transact(put)

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None, origin: str | None = None
    ) -> tuple[list[Suppression], bool]:
        """Newest first, and whether there are more."""
        named = {"account_id": account_id, "after": after, "before": before, "origin": origin, "limit": limit + 1}
        rows = await self._pool.rows(OLDER if before is None else NEWER, named)
        page = [_suppression(row) for row in rows[:limit]]
        return (page[::-1] if before is not None else page), len(rows) > limit

    async def search(
        self, account_id: UUID, text: str, limit: int, after: UUID | None = None, origin: str | None = None
    ) -> tuple[Sequence[Suppression], UUID | None]:
        """Those with this text in their address, newest first, and where to continue, if there is more to look at."""
        named = {"account_id": account_id, "after": after, "origin": origin, "limit": limit + 1, "text": text.lower()}
        rows = await self._pool.rows(SEARCH, named)
        found = [_suppression(row[:-2]) for row in rows if row[0] is not None]
        count, last_id = rows[0][-2:]
        if len(found) > limit:
            return found[:limit], found[limit - 1].id
        return found, last_id if count == SCANNED else None

    def _now(self) -> datetime:
        return utc(self._clock)


def _suppression(row: Row) -> Suppression:
    return Suppression(**COLUMNS.read(row))


def _erased(email: str, row: Row) -> Suppression:
    id_, origin, created_at = row
    return Suppression(id_, email, origin, None, None, created_at)


async def _write_events(tx: Transaction, account_id: UUID, kind: str, now: datetime, rows: Sequence[Row]) -> None:
    await events.write(tx, [NewEvent(account_id, None, None, None, kind, now, row[-1]) for row in rows])
