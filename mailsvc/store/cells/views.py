"""The views through which statements reach the tables of a cell, on the node that holds it. store/postgres/cells says what they are for.

`attach` creates them, and the triggers that refuse accounts that have left the cell (account_changes). It is called after each
migration and after each move. `suit` changes tables so that the cell can be moved.
"""

from __future__ import annotations

import psycopg2
from psycopg2 import sql

from mailsvc.store.cells import account_changes
from mailsvc.store.postgres.cells import PLACE, Place, direct_schema, directly, through_citus
from mailsvc.store.postgres.targets import bounded

LOCK = 0x63656C6C  # "cell"
POSITIONED = ("broadcast_recipients", "fresh_events", "queue", "suppressions", "webhook_outbox")  # tables whose rows are found by `ctid`

# Citus hides the tables of its shards from the catalog, unless it is told otherwise.
_SESSION = """
SET LOCAL lock_timeout = 5000;
SET LOCAL citus.enable_ddl_propagation = off;
SET LOCAL citus.override_table_visibility = off;
SELECT pg_advisory_xact_lock(%s)
"""
_TABLES = """
SELECT c.relname, s.shardid, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = %s::regnamespace AND NOT c.relispartition
AND EXISTS (
    SELECT FROM pg_dist_placement p JOIN pg_dist_local_group g ON g.groupid = p.groupid WHERE p.shardid = s.shardid
)
GROUP BY 1, 2
"""
# The table that a view selects from is in it, too: a new cell may have the name of one that was dropped.
_VIEWS = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum), (
    SELECT max(t.relname) FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class t ON t.oid = d.refobjid AND t.relkind IN ('r', 'p') WHERE r.ev_class = c.oid
)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'v' GROUP BY c.oid, c.relname
"""
# Shards have no identity columns: Citus numbers rows before they get there.
_NUMBERED = """
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attidentity <> ''
WHERE c.relnamespace = %s::regnamespace AND NOT c.relispartition
"""
# A move copies tables by logical replication, which needs to know each row, and the log of what changed.
_UNSUITABLE = """
SELECT c.relname, c.relpersistence = 'u',
       c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""


class NotHere(Exception):
    """This server does not hold the cell, or there is no such cell."""


def find(dsn: str, cell: str) -> Place:
    """Where the cell is. Raises NotHere if there is none with tables."""
    connection = psycopg2.connect(bounded(dsn))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'citus'")
            if cursor.fetchone() is not None:
                cursor.execute(PLACE, (cell,))
                if (row := cursor.fetchone()) is not None:
                    return Place.of(row)
        raise NotHere(f"There is no cell {cell} in this cluster. `mailsvc cell create {cell}` creates one.")
    finally:
        connection.close()


def attach(dsn: str, cell: str) -> list[str]:
    """Create the views that are missing or out of date, on the node that holds the cell. Returns their names."""
    connection = psycopg2.connect(bounded(directly(dsn, cell)))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_SESSION, (LOCK,))
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(direct_schema(cell))))
            cursor.execute(_TABLES, (cell,))
            tables = {name: (f"{name}_{shard}", _columns(name, columns)) for name, shard, columns in cursor.fetchall()}
            if not tables:
                raise NotHere(f"This server does not hold the cell {cell}.")
            cursor.execute(_VIEWS, (direct_schema(cell),))
            views = {name: (shard, columns) for name, columns, shard in cursor.fetchall()}
            changed = [name for name, wanted in tables.items() if views.get(name) != wanted]
            for name in changed:
                cursor.execute(_view(cell, name, *tables[name]))
            cursor.execute(_NUMBERED, (cell,))
            for name, column in cursor.fetchall():
                cursor.execute(_number(cell, name, column))
            account_changes.guard_again(cursor, cell)
            return sorted(changed)
    finally:
        connection.close()


def suit(coordinator: str, cell: str) -> None:
    """Change tables that could not be moved, on the coordinator."""
    connection = psycopg2.connect(bounded(through_citus(coordinator, cell)))
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(_UNSUITABLE, (cell,))
            found = cursor.fetchall()
            wanted = [(name, "SET LOGGED") for name, unlogged, _ in found if unlogged]
            wanted += [(name, "REPLICA IDENTITY FULL") for name, _, keyless in found if keyless]
            for name, change in wanted:
                cursor.execute(sql.SQL(f"ALTER TABLE {{}} {change}").format(sql.Identifier(cell, name)))
    finally:
        connection.close()


def _columns(table: str, columns: list[str]) -> list[str]:
    return ["ctid", *columns] if table in POSITIONED else columns


def _view(cell: str, name: str, shard: str, columns: list[str]) -> sql.Composable:
    view = sql.Identifier(direct_schema(cell), name)
    selected = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("DROP VIEW IF EXISTS {view}; CREATE VIEW {view} AS SELECT {columns} FROM {shard}").format(
        view=view, columns=selected, shard=sql.Identifier(cell, shard)
    )


def _number(cell: str, name: str, column: str) -> sql.Composable:
    """Number rows with a sequence of this node, which continues after the greatest number: they may come from another node."""
    view, field = sql.Identifier(direct_schema(cell), name), sql.Identifier(column)
    sequence = sql.Identifier(direct_schema(cell), f"{name}_{column}_seq")
    return sql.SQL(
        "CREATE SEQUENCE IF NOT EXISTS {sequence}; ALTER VIEW {view} ALTER COLUMN {field} SET DEFAULT nextval({name});"
        "SELECT setval({name}, greatest) FROM (SELECT max({field}) AS greatest FROM {view}) v WHERE greatest >= nextval({name})"
    ).format(sequence=sequence, view=view, field=field, name=sql.Literal(f"{direct_schema(cell)}.{name}_{column}_seq"))
