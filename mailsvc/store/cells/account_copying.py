"""Copies the rows of an account from one cell to another: ahead, what has changed since, and at the end what makes processes act.

All of it is repeatable, and leaves the old cell as it is. The lists of tables: account_tables.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import psycopg2
from psycopg2 import sql

from mailsvc.store.account_data.inserting import DAYS
from mailsvc.store.cells import account_changes
from mailsvc.store.cells.account_tables import PASSIVE, STAGED, Moved, read
from mailsvc.store.cells.views import attach, find
from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.cells import at, directly, through_citus
from mailsvc.store.postgres.targets import bounded

CHANGES = 2000  # that are applied at once
_SESSION = """
SET statement_timeout = 600000; SET lock_timeout = 5000; SET idle_in_transaction_session_timeout = 0; SET TimeZone = 'UTC';
SET synchronous_commit = on;
SET citus.enable_ddl_propagation = off; SET citus.override_table_visibility = off
"""
# One that Citus has moved has other placements.
_PLACEMENT = """
SELECT p.placementid FROM pg_dist_placement p JOIN pg_dist_shard s ON s.shardid = p.shardid
WHERE s.logicalrelid = to_regclass(%s)
"""
# One per table and session, because each one that is created grows the catalog.
_INCOMING = """
CREATE TEMP TABLE IF NOT EXISTS incoming_{name} ON COMMIT DELETE ROWS AS SELECT {columns} FROM {name} WITH NO DATA;
DELETE FROM pg_temp.incoming_{name}
"""
_BATCH = "COPY (SELECT {values} FROM {name} t WHERE {where} ORDER BY {key} LIMIT {size}) TO STDOUT"
_LAST = "SELECT {keys} FROM pg_temp.incoming_{name} t ORDER BY {descending} LIMIT 1"
_INSERT = "INSERT INTO {name} ({columns}) SELECT {columns} FROM pg_temp.incoming_{name} ON CONFLICT DO NOTHING"
_MOMENTS = "SELECT DISTINCT substr({key}::text, 1, 8) || substr({key}::text, 10, 4) FROM pg_temp.incoming_{name}"
_CHANGED = "COPY (SELECT {values} FROM {name} t JOIN jsonb_to_recordset({given}) AS k({keyed}) ON {same}) TO STDOUT"
_REMOVED = "DELETE FROM {name} t USING jsonb_to_recordset(%s) AS k({keyed}) WHERE {same}"
_STAGED = """
COPY (SELECT %(account)s::uuid, %(begin)s + row_number() OVER (), %(name)s::text, {content} FROM {name} t WHERE {scope}) TO STDOUT
"""
_ARRIVED = """
INSERT INTO account_arrivals (account_id, number, name, content)
SELECT account_id, number, name, content FROM pg_temp.incoming_account_arrivals
"""
_STRIDE = 1_000_000_000  # between the numbers of the rows of two tables
# What is different in the new cell.
_CONTENT = {"queue": "to_jsonb(t) || '{\"lease\": null}'", "audit_heads": "to_jsonb(t) || '{\"anchored\": 0}'"}


@attrs.define(eq=False)
class Side:
    """One of the two cells, on its node."""

    cell: str
    url: str = attrs.field(repr=False)
    connection: Any = attrs.field(repr=False)
    tables: Mapping[str, Moved]
    placement: int
    _days: set[datetime] = attrs.field(factory=set, init=False)

    @classmethod
    def open(cls, url: str, cell: str) -> Side:
        """Raises NotHere, or an OperationalError."""
        attach(at(url, find(url, cell).node), cell)  # no process may have used the cell yet
        connection = connect(url, cell)
        with connection, connection.cursor() as cursor:
            return cls(cell, url, connection, read(cursor), placement(cursor, cell))

    def close(self) -> None:
        self.connection.close()

    def ensure_days(self, days: Collection[datetime]) -> None:
        """Create the partitions of the days, through the coordinator."""
        missing = sorted(set(days) - self._days)
        if missing:
            place = find(self.url, self.cell)
            connection = psycopg2.connect(bounded(through_citus(at(self.url, place.coordinator), self.cell)))
            try:
                for day in missing:
                    partitions.create_day(connection, day)
            finally:
                connection.close()
            self._days.update(missing)


def connect(url: str, cell: str) -> Any:
    """A connection to the node of a cell, which works on its tables directly."""
    connection = psycopg2.connect(bounded(at(directly(url, cell), find(url, cell).node)))
    with connection, connection.cursor() as cursor:
        cursor.execute(_SESSION)
    return connection


def placement(cursor: Any, cell: str) -> int:
    """A number that is another one when Citus has moved the cell."""
    cursor.execute(_PLACEMENT, (f"{cell}.accounts",))
    return int(cursor.fetchone()[0])


@attrs.define(eq=False)
class AccountCopying:
    source: Side
    target: Side
    account: UUID
    moment: Callable[[str], None]  # called between two steps
    rows: int = 0

    def ahead(self) -> None:
        """Copy the passive tables."""
        for name in PASSIVE:
            self._table(self.source.tables[name])
            self.moment(f"copied {name}")

    def _table(self, table: Moved) -> None:
        after: tuple[str, ...] | None = None
        while True:
            where = table.scope if after is None else f"{table.scope} AND {table.after}"
            values = dict(zip((f"after_{key}" for key in table.shape.keys), after or (), strict=False))
            statement = _BATCH.format(values=table.values, name=table.name, where=where, key=table.key, size=table.size)
            with self.source.connection, self.source.connection.cursor() as cursor:
                data = _copied(cursor, statement, {"account": self.account, **values})
            with self.target.connection, self.target.connection.cursor() as cursor:
                count = self._load(cursor, table, data)
                if count:
                    keys = ", ".join(f"t.{key}::text" for key in table.shape.keys)
                    descending = ", ".join(f"t.{key} DESC" for key in table.shape.keys)
                    cursor.execute(_LAST.format(name=table.name, keys=keys, descending=descending))
                    after = cursor.fetchone()
                    cursor.execute(_INSERT.format(name=table.name, columns=table.columns))
            self.rows += count
            if count < table.size:
                return

    def _load(self, cursor: Any, table: Moved, data: io.BytesIO) -> int:
        """Put rows into the temporary table, and create the partitions of their days."""
        cursor.execute(_INCOMING.format(columns=table.columns, name=table.name))
        cursor.copy_expert(f"COPY pg_temp.incoming_{table.name} FROM STDIN", data)
        count = int(cursor.rowcount)
        if count and table.name in DAYS:
            cursor.execute(_MOMENTS.format(key=DAYS[table.name], name=table.name))
            self.target.ensure_days({_day(moment) for (moment,) in cursor.fetchall()})
        return count

    def changes(self, source: Any, target: Any, limit: int = CHANGES) -> int:
        """Apply recorded changes, in the transactions of these cursors. Returns how many; commit the target's first."""
        source.execute(sql.SQL("SELECT id, name, key FROM {} ORDER BY id LIMIT %s").format(account_changes.log(self.source.cell)), (limit,))
        found = source.fetchall()
        keys: dict[str, dict[str, Any]] = {}
        for _, name, key in found:
            keys.setdefault(name, {})[json.dumps(key, sort_keys=True)] = key
        for name, each in keys.items():
            self._apply(source, target, self.source.tables[name], json.dumps(list(each.values())))
        if found:
            ids = [id_ for id_, _, _ in found]
            source.execute(sql.SQL("DELETE FROM {} WHERE id = ANY (%s)").format(account_changes.log(self.source.cell)), (ids,))
        return len(found)

    def _apply(self, source: Any, target: Any, table: Moved, keys: str) -> None:
        """A row that another one is in the way of is among later changes, or was."""
        statement = _CHANGED.format(values=table.values, name=table.name, keyed=table.keyed, same=table.same, given="%(keys)s")
        data = _copied(source, statement, {"keys": keys})
        target.execute(_REMOVED.format(name=table.name, keyed=table.keyed, same=table.same), (keys,))
        if self._load(target, table, data):
            target.execute(_INSERT.format(name=table.name, columns=table.columns))

    def catch_up(self) -> int:
        """Apply one batch of changes in transactions of its own. Returns how many."""
        here, there = self.source.connection, self.target.connection
        with here, here.cursor() as source, there, there.cursor() as target:  # the target's is committed first
            return self.changes(source, target)

    def stage(self, source: Any, target: Any) -> int:
        """Copy the staged rows into the new cell, in the transactions of these cursors. Returns how many."""
        count = 0
        target.execute("DELETE FROM account_arrivals WHERE account_id = %s", (str(self.account),))
        for number, name in enumerate(STAGED):
            content = _CONTENT.get(name, "to_jsonb(t)")
            given = {"account": self.account, "begin": number * _STRIDE, "name": name}
            data = _copied(source, _STAGED.format(name=name, content=content, scope=self.source.tables[name].scope), given)
            target.execute(_INCOMING.format(columns="account_id, number, name, content", name="account_arrivals"))
            target.copy_expert("COPY pg_temp.incoming_account_arrivals FROM STDIN", data)
            count += int(target.rowcount)
            target.execute(_ARRIVED)
        return count


def delete_rows(side: Side, names: Sequence[str], account: UUID, moment: Callable[[str], None]) -> None:
    """Delete the account's rows of these tables, in batches."""
    for name in names:
        count = size = side.tables[name].size
        while count >= size:
            with side.connection, side.connection.cursor() as cursor:
                cursor.execute(side.tables[name].delete_some, {"account": str(account), "size": size})
                count = cursor.rowcount if side.tables[name].shape.keys else 0
        moment(f"deleted {name}")


def _copied(cursor: Any, statement: str, values: Mapping[str, object]) -> io.BytesIO:
    data = io.BytesIO()
    given = {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
    cursor.copy_expert(cursor.mogrify(statement, given).decode(), data)
    data.seek(0)
    return data


def _day(moment: str) -> datetime:
    """The day of a UUIDv7, of which these are the digits with the time."""
    seconds = uuid7_seconds(UUID(f"{moment}{'0' * 20}"))
    return datetime.fromtimestamp(seconds, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
