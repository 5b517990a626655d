"""Imports of contacts: the uploaded file in chunks, who works on it, and batches of rows with the position in the file.

A batch and the position after it are one transaction, so a process that dies repeats nothing and misses nothing. Reading the file:
audience/imports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import unsubscribes
from mailsvc.store.audience.import_values import Batch, Counts, Import, ImportRow, Lost, Orders, RowError
from mailsvc.store.audience.values import EVERYTHING, TRACKING, Full
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.inserts import document
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns, statement

CHUNK = 1 << 20  # bytes
CLAIM = timedelta(seconds=20)  # renewed by every batch

RESULTS = ("created", "updated", "skipped", "failed")  # the result of a row
_COUNTS = tuple(field.name for field in attrs.fields(Counts))
COLUMNS = Columns.of(
    account_id="account_id",
    id="id",
    status="status",
    orders="settings",
    bytes="bytes",
    position="position",
    line="line",
    **{name: name for name in _COUNTS},
    reason="reason",
    created_at="created_at",
    completed_at="completed_at",
)
_OPEN = "SELECT count(*) FROM contact_imports WHERE account_id = %s AND status IN ('uploaded', 'queued', 'in_progress')"
ADD = f"""
INSERT INTO contact_imports (account_id, id, status, settings, bytes, position, line, created_at)
VALUES (%s, %s, %s, %s, %s, %s, 1, %s) RETURNING {COLUMNS}
"""
LINE = "UPDATE contact_imports SET line = %s WHERE account_id = %s AND id = %s"
START = f"""
UPDATE contact_imports SET status = 'queued', settings = %s, position = %s, created_at = %s
WHERE account_id = %s AND id = %s AND status = 'uploaded' RETURNING {COLUMNS}
"""
DISCARD = "DELETE FROM contact_imports WHERE account_id = %s AND id = %s AND status = 'uploaded'"
ADD_CHUNK = "INSERT INTO contact_import_chunks (account_id, import_id, number, data) VALUES (%s, %s, %s, %s)"
CHUNKS = "SELECT data FROM contact_import_chunks WHERE account_id = %s AND import_id = %s AND number = %s"
DELETE_CHUNKS = "DELETE FROM contact_import_chunks WHERE account_id = %s AND import_id = %s"
_SELECT = f"SELECT {COLUMNS} FROM contact_imports WHERE account_id = %s"
# The one that was left alone for longest. A claim that was given back or has expired counts from then.
TAKE = f"""
UPDATE contact_imports SET status = 'in_progress', claim = %(claim)s, claimed_until = %(until)s
WHERE (account_id, id) = (
    SELECT account_id, id FROM contact_imports
    WHERE status IN ('queued', 'in_progress') AND (claimed_until IS NULL OR claimed_until <= %(now)s)
    ORDER BY coalesce(claimed_until, created_at) LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING {COLUMNS}
"""
GIVE_BACK = "UPDATE contact_imports SET claimed_until = %s WHERE account_id = %s AND id = %s AND claim = %s"
ADVANCE = """
UPDATE contact_imports SET position = %(position)s, line = %(line)s, claimed_until = %(until)s, total = total + %(total)s,
    created = created + %(created)s, updated = updated + %(updated)s, skipped = skipped + %(skipped)s, failed = failed + %(failed)s
WHERE account_id = %(account_id)s AND id = %(id)s AND claim = %(claim)s AND position = %(from)s AND status = 'in_progress'
"""
END = """
UPDATE contact_imports SET status = %s, reason = %s, completed_at = %s, claim = NULL, claimed_until = NULL
WHERE account_id = %s AND id = %s AND claim = %s AND status = 'in_progress'
"""
# What is written refers to segments, topics and properties; those that were deleted meanwhile are left out.
_LIVE = "SELECT id FROM {table} WHERE account_id = %s AND id = ANY (%s::uuid[]) AND deleted_at IS NULL ORDER BY id FOR KEY SHARE"
LIVE_PROPERTIES = """
SELECT number FROM contact_properties WHERE account_id = %s AND number = ANY (%s::bigint[]) AND deleted_at IS NULL ORDER BY id FOR KEY SHARE
"""
INSERT = statement("mailsvc.store.audience", "insert_contacts")
UPDATE = statement("mailsvc.store.audience", "update_contacts")
EXISTING = """
SELECT id FROM contacts WHERE account_id = %s AND address = ANY (SELECT json_array_elements_text(%s)) ORDER BY id FOR NO KEY UPDATE
"""
UNSUBSCRIBE = """
UPDATE contacts c SET unsubscribed = true FROM unsubscribes u
WHERE c.account_id = %s AND c.id = ANY (%s::uuid[]) AND u.account_id = c.account_id AND u.hash = c.hash AND u.topic_id = %s
"""
UNTRACK = UNSUBSCRIBE.replace("unsubscribed = true", "untracked = true")
OPT_OUT = """
INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at)
SELECT c.account_id, c.id, u.topic_id, false, %s FROM contacts c
JOIN unsubscribes u ON u.account_id = c.account_id AND u.hash = c.hash
JOIN topics t ON t.account_id = u.account_id AND t.id = u.topic_id AND t.deleted_at IS NULL
WHERE c.account_id = %s AND c.id = ANY (%s::uuid[]) ON CONFLICT DO NOTHING
"""
JOIN_SEGMENTS = """
INSERT INTO contact_segments (account_id, segment_id, contact_id, added_at)
SELECT %s, s, c, %s FROM unnest(%s::uuid[]) AS s, unnest(%s::uuid[]) AS c ON CONFLICT DO NOTHING
"""
OPT_IN = """
INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at)
SELECT %s, c, t, true, %s FROM unnest(%s::uuid[]) AS t, unnest(%s::uuid[]) AS c ON CONFLICT DO NOTHING
"""
OPT_OUT_CHOSEN = """
INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at)
SELECT %s, c, t, false, %s FROM unnest(%s::uuid[]) AS t, unnest(%s::uuid[]) AS c
ON CONFLICT (account_id, contact_id, topic_id) DO UPDATE SET subscribed = false, changed_at = excluded.changed_at
"""
ADD_ERRORS = """
INSERT INTO contact_import_errors (account_id, import_id, line, reason, value)
SELECT %s, %s, g.line, g.reason, g.value FROM json_to_recordset(%s) AS g(line bigint, reason text, value text) ON CONFLICT DO NOTHING
"""
ERRORS = """
SELECT line, reason, value FROM contact_import_errors WHERE account_id = %s AND import_id = %s AND line > %s ORDER BY line LIMIT %s
"""
PAGE = 1000
NONE = Orders({}, True, (), ())


def import_of(row: Row) -> Import:
    values = COLUMNS.read(row)
    counts = Counts(**{name: values.pop(name) for name in _COUNTS})
    return Import(**values | {"orders": Orders.of(values["orders"]), "counts": counts})


@attrs.define(eq=False)
class Imports:
    """`most_errors`: the number of errors of an import that are kept. `most_open`: imports of an account that are not completed."""

    pool: Pool
    clock: Any
    most_errors: int = 100_000
    most_open: int = 20
    claim: UUID = attrs.field(factory=uuid4)  # of this process
    rows: Counter[str] = attrs.field(factory=Counter, init=False)  # written by this process, by outcome
    ended: Counter[str] = attrs.field(factory=Counter, init=False)  # imports that this process ended

    async def add(
        self, account_id: UUID, orders: Orders | None, size: int, start: int, chunks: AsyncIterator[bytes], lines: Sequence[Line] = ()
    ) -> Import:
        """Store a file of `size` bytes, whose rows begin at `start`. Without orders it waits for `start`. Raises Full."""
        now = utc(self.clock)
        id_ = uuid7(now.timestamp())

        async def put(tx: Transaction) -> Import:
            await tx.rows(LOCK, (account_id,))
            if (await tx.rows(_OPEN, (account_id,)))[0][0] >= self.most_open:
                raise Full("imports in progress", self.most_open)
            status = "queued" if orders else "uploaded"
            [row] = await tx.rows(ADD, (account_id, id_, status, (orders or NONE).stored(), size, start, now))
            number = 0
            async for chunk in chunks:
                if number == 0 and (line := chunk[:start].count(b"\n")) > 1:  # one before the header names the separator
                    await tx.run(LINE, (line, account_id, id_))
                await tx.run(ADD_CHUNK, (account_id, id_, number, chunk))
                number += 1
            await write(tx, lines, now.timestamp())
            return import_of(row)

        return await self.pool.transact(put)

    async def uploaded(self, account_id: UUID, id_: UUID) -> Import | None:
        """A file that waits for its orders."""
        return await self._one(" AND id = %s AND status = 'uploaded'", account_id, id_)

    async def start(self, account_id: UUID, id_: UUID, orders: Orders, start: int, lines: Sequence[Line] = ()) -> bool:
        """Begin with an uploaded file, whose rows begin at `start`. False if there is none, or it was started already."""

        async def put(tx: Transaction) -> bool:
            now = utc(self.clock)
            started = await tx.rows(START, (orders.stored(), start, now, account_id, id_))
            await write(tx, lines if started else (), now.timestamp())
            return bool(started)

        return await self.pool.transact(put)

    async def discard(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> bool:
        """Delete an uploaded file. False if there is none, or it was started already."""

        async def take(tx: Transaction) -> bool:
            if not await tx.run(DISCARD, (account_id, id_)):
                return False
            await tx.run(DELETE_CHUNKS, (account_id, id_))
            await write(tx, lines, utc(self.clock).timestamp())
            return True

        return await self.pool.transact(take)

    async def get(self, account_id: UUID, id_: UUID) -> Import | None:
        """Not one that waits for its orders."""
        return await self._one(" AND id = %s AND status <> 'uploaded'", account_id, id_)

    async def _one(self, which: str, account_id: UUID, id_: UUID) -> Import | None:
        rows = await self.pool.rows(_SELECT + which, (account_id, id_))
        return import_of(rows[0]) if rows else None

    async def list(self, account_id: UUID, page: Page, status: str | None = None) -> tuple[list[Import], bool]:
        """Without a status all but those that wait for their orders."""
        end, params = page.where("id")
        only, more_params = (" AND status = %s", (status,)) if status else (" AND status <> 'uploaded'", ())
        found, more = page.cut(await self.pool.rows(_SELECT + only + end, (account_id, *more_params, *params)))
        return [import_of(row) for row in found], more

    async def errors(self, account_id: UUID, id_: UUID) -> AsyncIterator[Sequence[RowError]]:
        """In pages, by line."""
        line = 0
        while rows := await self.pool.rows(ERRORS, (account_id, id_, line, PAGE)):
            line = rows[-1][0]
            yield [RowError(*row) for row in rows]

    # The process that works on one

    async def take(self) -> Import | None:
        """Claim the next import."""
        now = utc(self.clock)
        rows = await self.pool.rows(TAKE, {"claim": self.claim, "now": now, "until": now + CLAIM})
        return import_of(rows[0]) if rows else None

    async def give_back(self, one: Import) -> None:
        """Let another one have its turn."""
        await self.pool.run(GIVE_BACK, (utc(self.clock), one.account_id, one.id, self.claim))

    async def chunk(self, one: Import, number: int) -> bytes:
        rows = await self.pool.rows(CHUNKS, (one.account_id, one.id, number))
        return bytes(rows[0][0]) if rows else b""

    async def end(self, one: Import, reason: str | None = None) -> None:
        """It is completed, or failed for a reason."""

        status = "failed" if reason else "completed"

        async def finish(tx: Transaction) -> bool:
            ended = (status, reason, utc(self.clock), one.account_id, one.id, self.claim)
            if not await tx.run(END, ended):
                return False
            await tx.run(DELETE_CHUNKS, (one.account_id, one.id))
            return True

        self.ended[status] += await self.pool.transact(finish)

    async def analyze(self) -> None:
        """Let the planner know of many new rows."""
        await self.pool.run("ANALYZE contacts")
        await self.pool.run("ANALYZE contact_segments")

    async def commit(self, one: Import, batch: Batch) -> Import:
        """Write a batch. Returns the import as it is then. Raises Lost if another process works on it."""

        async def put(tx: Transaction) -> Import:
            now = utc(self.clock)
            await unsubscribes.share(tx, one.account_id)
            counts = await self._write(tx, one, batch, now)
            errors = list(batch.errors)[: max(0, self.most_errors - one.counts.failed)]
            if errors:
                await tx.run(ADD_ERRORS, (one.account_id, one.id, document([attrs.asdict(each) for each in errors])))
            values = {"account_id": one.account_id, "id": one.id, "claim": self.claim, "from": one.position, "until": now + CLAIM}
            done = {"position": batch.position, "line": batch.line, **attrs.asdict(counts)}
            if not await tx.run(ADVANCE, {**values, **done}):
                raise Lost
            sums = {name: value + getattr(one.counts, name) for name, value in attrs.asdict(counts).items()}
            return attrs.evolve(one, position=batch.position, line=batch.line, counts=Counts(**sums))

        after = await self.pool.transact(put)
        for name in RESULTS:
            self.rows[name] += getattr(after.counts, name) - getattr(one.counts, name)
        return after

    async def _write(self, tx: Transaction, one: Import, batch: Batch, now: datetime) -> Counts:
        account_id, orders = one.account_id, one.orders
        rows = _distinct(batch.rows, orders.update)
        into = await _live(tx, "segments", account_id, orders.segments)
        about = set(await _live(tx, "topics", account_id, [each.topic_id for each in orders.topics]))
        numbers = sorted({int(number) for row in rows for number in row.properties})
        live = {str(number) for (number,) in await tx.rows(LIVE_PROPERTIES, (account_id, numbers))} if numbers else set()
        ids = [uuid7(now.timestamp()) for _ in rows]
        given = [_stored(id_, row, live) for id_, row in zip(ids, rows, strict=True)]
        scope = {"account_id": account_id, "import_id": one.id, "now": now}
        new = {id_ for (id_,) in await tx.rows(INSERT, {**scope, "rows": document(given)})} if given else set()
        existing = [row for id_, row in zip(ids, given, strict=True) if id_ not in new]
        touched = sorted(new)
        if new:
            created = _array(touched)
            await tx.run(UNSUBSCRIBE, (account_id, created, EVERYTHING))
            await tx.run(UNTRACK, (account_id, created, TRACKING))
            await tx.run(OPT_OUT, (now, account_id, created))
        if existing and orders.update:
            addresses = document([row["address"] for row in existing])
            touched += [id_ for (id_,) in await tx.rows(EXISTING, (account_id, addresses))]
            await tx.run(UPDATE, {**scope, "rows": document(existing)})
        if touched and into:
            await tx.run(JOIN_SEGMENTS, (account_id, now, into, _array(touched)))
        for sql, subscribed in ((OPT_OUT_CHOSEN, False), (OPT_IN, True)):
            chosen = [each.topic_id for each in orders.topics if each.subscribed is subscribed and each.topic_id in about]
            if touched and chosen:
                await tx.run(sql, (account_id, now, chosen, _array(touched)))
        again = len(batch.rows) - len(new)
        failed = len(batch.errors)
        updated, skipped = (again, 0) if orders.update else (0, again)
        return Counts(len(batch.rows) + failed, len(new), updated, skipped, failed)


async def _live(tx: Transaction, table: str, account_id: UUID, ids: Sequence[UUID]) -> list[UUID]:
    if not ids:
        return []
    return [id_ for (id_,) in await tx.rows(_LIVE.format(table=table), (account_id, list(ids)))]


def _distinct(rows: Sequence[ImportRow], update: bool) -> list[ImportRow]:
    """One row for each address, in the order of addresses, in which all writers lock contacts."""
    found: dict[str, ImportRow] = {}
    for row in rows:
        known = found.get(row.address)
        found[row.address] = row if known is None else known.merged(row) if update else known
    return [found[address] for address in sorted(found)]


def _stored(id_: UUID, row: ImportRow, live: set[str]) -> dict[str, object]:
    properties = {number: value for number, value in row.properties.items() if number in live}
    return {
        "id": id_, "address": row.address, "email": row.email, "first_name": row.first_name, "last_name": row.last_name,
        "unsubscribed": row.unsubscribed, "properties": properties, "hash": row.hash.hex(),
    }  # fmt: skip


def _array(ids: Sequence[UUID]) -> str:
    """IDs as the text of an array, which is much faster than adapting each."""
    return "{" + ",".join(map(str, ids)) + "}"
