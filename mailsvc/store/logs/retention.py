"""Deletes what is too old: partitions for all accounts, rows for an account that keeps less. What is queued is never deleted.

A day's partition is emptied (its own table alone is locked, so nobody else notices) or, once nothing of it is kept any longer, dropped.
Events are in the partition of their email's day, which is not emptied while some are too young.

Both are checked again under the lock that keeps writers out, so that nothing can be queued in between. A lock that is not free within
half a second is tried again at the next sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.cells.coordinator import changing_schema
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.in_turn import in_turn
from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.cells import PARTITIONS, PARTITIONS_OF_CELL, PLACES, PLACES_IN_CELL, cell_of
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.errors import Contention, TimedOut
from mailsvc.store.postgres.partitions import name_of
from mailsvc.store.postgres.pool import Pool, Transaction

LOCK = 0x6B656570  # "keep": one sweep at a time in the whole installation
BATCH = 500  # rows by which an account's own are deleted
BATCHES = 400  # of these for one table and account in one sweep; the rest is for the next
PATIENCE = "SET LOCAL lock_timeout = 500; SET LOCAL statement_timeout = 5000"  # shorter than a deadlock takes to be found

log = Logger()

_ALONE = "SELECT pg_try_advisory_xact_lock(%s)"

# What may still wait, by the column that says of what.
_QUEUE = "SELECT FROM queue w WHERE w.email_id {is_it}"
_NOTICES = "SELECT FROM notices w WHERE w.email_id {is_it} AND w.next_at < 'infinity'"  # what was told does not wait
_FRESH = "SELECT FROM fresh_events w WHERE w.email_id {is_it}"
_FRESH_ITSELF = "SELECT FROM fresh_events w WHERE w.event_id {is_it}"
_OUTBOX = "SELECT FROM webhook_outbox w WHERE w.email_id {is_it}"
_OUTBOX_ITSELF = "SELECT FROM webhook_outbox w WHERE w.event_id {is_it}"


@attrs.frozen
class Kind:
    """Tables with the same retention. `key`: the ID that contains the day; `waits`: what prevents deletion.

    `own`: the ID that contains a row's own time, from which it is kept. The rows of each account have a `sequence`.
    """

    tables: tuple[str, ...]
    key: str = "email_id"
    waits: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()  # tables whose partitions of that day are dropped; if empty, the partitions are only truncated
    own: str = ""


MAIL = ("emails", "messages", "events", "attempts", "event_log", "hits")
KINDS: Mapping[str, Kind] = {
    "bodies": Kind(("messages",), waits=(_QUEUE, _NOTICES)),
    "attempts": Kind(("attempts",), waits=(_QUEUE,)),
    "events": Kind(("event_log",), waits=(_QUEUE, _FRESH), own="event_id"),
    "emails": Kind(("emails", "events", "hits"), waits=(_QUEUE, _NOTICES, _FRESH, _OUTBOX), drops=MAIL),
    "webhooks": Kind(
        ("webhook_messages", "webhook_attempts"), "event_id", (_OUTBOX_ITSELF, _FRESH_ITSELF), ("webhook_messages", "webhook_attempts")
    ),
    "requests": Kind(("request_log",), "log_id", (), ("request_log",)),
    "receipts": Kind(("receipts",), "receipt_id", (), ("receipts",)),
}

_PARTITIONS = """
SELECT name, pg_relation_size(place) > 0 FROM {partitions} WHERE parent = %s ORDER BY 1
"""
_SIZES = """
SELECT parent, sum(pg_total_relation_size(place))::bigint, min(name) FILTER (WHERE pg_relation_size(place) > 0)
FROM {partitions} WHERE parent = ANY (%s) GROUP BY 1
"""
_ACCOUNTS = """
SELECT id, coalesce(retention, '{}') || CASE WHEN 'bodies' = ANY (minimize) THEN '{"bodies": 0}' ELSE '{}' END::jsonb
FROM accounts WHERE retention IS NOT NULL OR 'bodies' = ANY (minimize) ORDER BY id
"""
_WANT = "UPDATE accounts SET retention = %s WHERE id = %s"
_WANTED = "SELECT retention FROM accounts WHERE id = %s"


@attrs.frozen
class Size:
    """Bytes of a kind including indexes, and the oldest day with data."""

    bytes: int
    oldest: datetime | None


@attrs.define(eq=False)
class Retention:
    pool: Pool

    @property
    def _in_cell(self) -> bool:
        return cell_of(self.pool.dsn) is not None

    def _of_partitions(self, sql: str) -> str:
        return sql.format(partitions=PARTITIONS_OF_CELL if self._in_cell else PARTITIONS)

    async def sweep(self, days: Mapping[str, int], now: datetime) -> list[str]:
        """Delete data older than the given days of each kind. Returns the partitions that were truncated or dropped."""
        done: list[str] = []

        async def sweep(kind: str, count: int) -> None:
            done.extend(await self._sweep(KINDS[kind], now - timedelta(days=count)))

        await in_turn([partial(sweep, *each) for each in days.items()], ends=())
        return done

    async def sweep_account(self, account_id: UUID, days: Mapping[str, int], now: datetime) -> int:
        """Delete old rows of one account. Returns how many."""
        count = 0
        for kind, number in days.items():
            for table in KINDS[kind].tables:
                count += await self._delete(account_id, KINDS[kind], table, uuid7_floor(now - timedelta(days=number)))
        return count

    async def wanted(self, account_id: UUID) -> dict[str, int]:
        """The shorter retention of an account, by kind."""
        rows = await self.pool.rows(_WANTED, (account_id,))
        return rows[0][0] or {} if rows else {}

    async def want(self, account_id: UUID, days: Mapping[str, int], now: float = 0.0, lines: Sequence[Line] = ()) -> None:
        """`lines` are for the audit log."""
        await changed(self.pool, now, lines, _WANT, (dict(days) or None, account_id))

    async def accounts(self) -> dict[UUID, dict[str, int]]:
        """Accounts with a shorter retention than the settings, in days. 0: until nobody waits for it."""
        return dict(await self.pool.rows(_ACCOUNTS))

    async def sizes(self) -> dict[str, Size]:
        """Sizes by kind."""
        tables = {
            row[0]: row
            for row in await self.pool.rows(self._of_partitions(_SIZES), ([*MAIL, *(t for kind in KINDS.values() for t in kind.tables)],))
        }
        return {name: _size([tables[table] for table in kind.tables if table in tables]) for name, kind in KINDS.items()}

    async def _sweep(self, kind: Kind, before: datetime) -> list[str]:
        first, *_ = kind.tables
        listing = self._of_partitions(_PARTITIONS)
        found: dict[str, dict[str, bool]] = {table: dict(await self.pool.rows(listing, (table,))) for table in kind.tables}
        done: list[str] = []
        for name in found[first]:
            day = _day(name)
            if day + timedelta(days=1) > before:
                break
            if kind.drops or any(found[table].get(name_of(table, day)) for table in kind.tables):
                try:
                    done += await self._end(kind, day, before)
                except (Contention, TimedOut):
                    # For example a backup. A waiting lock blocks all others, so do not try again for each day.
                    log.info("The table {table} is in use, so its data of {day} stays until the next sweep.", table=first, day=day.date())
                    break
        return done

    async def _end(self, kind: Kind, day: datetime, before: datetime) -> list[str]:
        """Delete one day, unless something of that day is still needed or another process is deleting."""
        edges = {"first": uuid7_floor(day), "beyond": uuid7_floor(day + timedelta(days=1))}
        names = [name_of(table, day) for table in kind.drops or kind.tables]
        waits = " OR ".join(f"EXISTS ({each.format(is_it='>= %(first)s')} AND w.{kind.key} < %(beyond)s)" for each in kind.waits)

        async def end(tx: Transaction) -> list[str]:
            if not (await tx.rows(_ALONE, (LOCK,)))[0][0]:
                return []
            places: dict[str, str] = dict(await tx.rows(PLACES_IN_CELL if self._in_cell else PLACES, ([*kind.drops, *names],)))
            there = [name for name in names if name in places]
            young = [_latest(places[name], kind.own, before) for name in there if kind.own]
            held = f"SELECT {' OR '.join(filter(None, [waits, *young])) or 'false'}"
            if not there or (await tx.rows(held, edges))[0][0]:
                return []
            # Parents first, in the order of all other readers and writers.
            locked = ", ".join([*(f"ONLY {places[table]}" for table in kind.drops), *(places[name] for name in there)])
            await tx.run(f"{PATIENCE}; LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
            if (await tx.rows(held, edges))[0][0]:
                return []
            if kind.drops and not self._in_cell:
                await tx.run(f"DROP TABLE {', '.join(there)}")
            else:
                await tx.run(f"TRUNCATE TABLE {', '.join(places[name] for name in there)}")
            return there

        ended = await self.pool.transact(end)
        return await self.pool.transact(partial(self._drop, names=ended)) if ended and kind.drops and self._in_cell else ended

    async def _drop(self, tx: Transaction, names: Sequence[str]) -> list[str]:
        """In a cell, have the coordinator drop empty partitions. It does not share the transaction, which only keeps other sweeps out."""
        if not (await tx.rows(_ALONE, (LOCK,)))[0][0]:
            return []
        there = [name for name, _ in await tx.rows(PLACES_IN_CELL, (list(names),))]
        if there:
            async with changing_schema(self.pool) as changing:
                await changing.run(f"{PATIENCE}; DROP TABLE IF EXISTS {', '.join(there)}")
        return there

    async def _delete(self, account_id: UUID, kind: Kind, table: str, before: UUID) -> int:
        waits = " ".join(f"AND NOT EXISTS ({each.format(is_it=f'= t.{kind.key}')})" for each in kind.waits)
        old = f"t.account_id = %(account)s AND t.{kind.key} < %(before)s" + (f" AND t.{kind.own} < %(before)s" if kind.own else "")
        sql = f"""
            WITH old AS MATERIALIZED (
                SELECT DISTINCT x.id FROM (
                    SELECT t.{kind.key} AS id FROM {table} t WHERE {old} {waits}
                    LIMIT %(bite)s
                ) x
            )
            DELETE FROM {table} t USING old WHERE t.{kind.key} = old.id AND {old}
        """
        deleted = 0
        for _ in range(BATCHES):
            count = await self.pool.run(sql, {"account": account_id, "before": before, "bite": BATCH})
            deleted += count
            if not count:
                break
        return deleted


def _latest(place: str, own: str, before: datetime) -> str:
    """Whether an account's latest row in a partition is too young, as SQL. It goes from account to account by the primary key, because the
    partition can be too large to be read as a whole, and a late row can be anywhere in it: deleted rows leave room.
    """
    latest = f"SELECT account_id, {own} FROM {place} {{}} ORDER BY account_id DESC, sequence DESC LIMIT 1"
    return f"""EXISTS (
        WITH RECURSIVE latest AS (
            ({latest.format("")}) UNION ALL
            SELECT next.* FROM latest l CROSS JOIN LATERAL ({latest.format("WHERE account_id < l.account_id")}) next
        ) SELECT FROM latest WHERE {own} >= '{uuid7_floor(before)}'
    )"""


def _day(partition: str) -> datetime:
    return datetime.strptime(partition[-8:], "%Y%m%d").replace(tzinfo=UTC)


def _size(rows: list[Row]) -> Size:
    oldest = [_day(name) for _, _, name in rows if name is not None]
    return Size(sum(size for _, size, _ in rows), min(oldest, default=None))
