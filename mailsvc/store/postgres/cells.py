"""Cells: all tables in one distributed schema of Citus, which lies whole on one node. docs/decisions/cells.md has the reasons.

Citus plans a statement that names a distributed table itself, refuses some, and takes several times as long as Postgres. On the node that
holds a cell, its tables are ordinary ones, called `emails_102014` and so on. `attach` creates a second schema there, with a view of each
under its proper name. Statements that find the views first are planned and executed by Postgres alone, as without Citus.

Changes of the schema itself (migrations, partitions) are for Citus, which must know of them: they name the distributed schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import make_dsn, parse_dsn

LOCK = 0x63656C6C  # "cell"
SETTING = "mailsvc.cell"  # of a session: the cell that it works in
# In front of statements that change the schema, in the same transaction. Without a cell, it does nothing.
FOR_CITUS = f"CASE WHEN current_setting('{SETTING}', true) <> '' THEN set_config('search_path', current_setting('{SETTING}'), true) END"
TABLES_IN = f"coalesce(nullif(current_setting('{SETTING}', true), ''), current_schema())"  # the schema with tables, keys and types
POSITIONED = ("broadcast_recipients", "fresh_events", "queue", "suppressions", "webhook_outbox")  # tables whose rows are found by `ctid`

_CELL = re.compile(rf"-c\s*{re.escape(SETTING)}=(\w+)")

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
_VIEWS = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'v' GROUP BY 1
"""
# Where the rows of partitions are: `place` is the table on this node.
PARTITIONS = """(
    SELECT p.relname AS parent, c.relname AS name, c.oid AS place
    FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_class c ON c.oid = i.inhrelid
) parts"""
PARTITIONS_OF_CELL = """(
    SELECT p.relname AS parent, c.relname AS name, to_regclass(format('%%I.%%I', n.nspname, c.relname || '_' || s.shardid))::oid AS place
    FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_dist_shard s ON s.logicalrelid = c.oid
    WHERE n.nspname = current_setting('mailsvc.cell')
) parts"""
# The name by which each of these tables can be locked, if it exists.
PLACES = "SELECT n, n FROM unnest(%s) AS n WHERE to_regclass(n) IS NOT NULL"
PLACES_IN_CELL = """
SELECT c.relname, format('%%I.%%I', n.nspname, c.relname || '_' || s.shardid)
FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s) WITH ORDINALITY AS w(name, number) ON w.name = c.relname
WHERE n.nspname = current_setting('mailsvc.cell') ORDER BY w.number
"""
# Shards have no identity columns: Citus numbers rows before they get there.
_NUMBERED = """
SELECT c.relname, a.attname, pg_get_serial_sequence(c.oid::regclass::text, a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attidentity <> '' WHERE c.relnamespace = %s::regnamespace
"""


class NotHere(Exception):
    """This server does not hold the cell."""


def direct_schema(cell: str) -> str:
    """The schema with the views."""
    return f"{cell}_direct"


def directly(dsn: str, cell: str) -> str:
    """The DSN for a process that works in the cell."""
    path = f"{direct_schema(cell)},{cell},public"
    return _with_options(dsn, {SETTING: cell, "search_path": path, "citus.enable_manual_changes_to_shards": "on"})


def through_citus(dsn: str, cell: str) -> str:
    """The DSN for changes of the schema."""
    return _with_options(dsn, {"search_path": f"{cell},public"})


def cell_of(dsn: str) -> str | None:
    """The cell of a DSN that `directly` has made."""
    found = _CELL.findall(parse_dsn(dsn).get("options", ""))
    return found[-1] if found else None


def _with_options(dsn: str, settings: Mapping[str, str]) -> str:
    options = [parse_dsn(dsn).get("options", ""), *(f"-c{name}={value}" for name, value in settings.items())]
    return make_dsn(dsn, options=" ".join(options).strip())


def attach(dsn: str, cell: str) -> list[str]:
    """Create the views that are missing or out of date, on the node that holds the cell. Returns their names."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_SESSION, (LOCK,))
            cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(direct_schema(cell))))
            cursor.execute(_TABLES, (cell,))
            tables = {name: (shard, _columns(name, columns)) for name, shard, columns in cursor.fetchall()}
            if not tables:
                raise NotHere(f"This server does not hold the cell {cell}.")
            cursor.execute(_VIEWS, (direct_schema(cell),))
            views = dict(cursor.fetchall())
            changed = [name for name, (_, columns) in tables.items() if views.get(name) != columns]
            for name in changed:
                shard, columns = tables[name]
                cursor.execute(_view(cell, name, f"{name}_{shard}", columns))
            cursor.execute(_NUMBERED, (cell,))
            for name, column, sequence in cursor.fetchall():
                cursor.execute(_number(cell, name, column, sequence))
            return sorted(changed)
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


def _number(cell: str, name: str, column: str, sequence: str) -> sql.Composable:
    """Continue a sequence after the greatest number: after a move, it is that of another node."""
    view, field = sql.Identifier(direct_schema(cell), name), sql.Identifier(column)
    return sql.SQL(
        "ALTER VIEW {view} ALTER COLUMN {field} SET DEFAULT nextval({sequence});"
        "SELECT setval({sequence}, greatest(nextval({sequence}), (SELECT coalesce(max({field}), 1) FROM {view})))"
    ).format(view=view, field=field, sequence=sql.Literal(sequence))
