"""Cells: all tables in one distributed schema of Citus, which lies whole on one node. docs/decisions/cells.md has the reasons.

Here is what connections and statements need: the DSN of a cell, where the cell is, and the names of its tables. The package store/cells
creates and moves cells, and keeps them in place while they are used.

Citus plans a statement that names a distributed table itself, refuses some, and takes several times as long as Postgres. On the node that
holds a cell, its tables are ordinary ones, called `emails_102014` and so on. `store/cells/views` creates a second schema there, with a
view of each under its proper name. Statements that find the views first are planned and executed by Postgres alone, as without Citus.

Changes of the schema itself (migrations, partitions) are for Citus, which must know of them: they name the distributed schema, and run on
the coordinator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs
from psycopg2 import ProgrammingError
from psycopg2.extensions import make_dsn, parse_dsn

SETTING = "mailsvc.cell"  # of a session: the cell that it works in
TABLES_IN = f"coalesce(nullif(current_setting('{SETTING}', true), ''), current_schema())"  # the schema with tables, keys and types

_CELL = re.compile(rf"-c{re.escape(SETTING)}=(\w+)")
_OURS = re.compile(rf"-c(?:{re.escape(SETTING)}|search_path|citus\.enable_manual_changes_to_shards)=\S*")

# Where a cell is, asked on any node; with the coordinator. Each node knows all nodes.
PLACE = """
SELECT n.nodename, n.nodeport, p.groupid = l.groupid, c.nodename, c.nodeport, l.groupid = 0
FROM pg_dist_local_group l, pg_dist_node c,
LATERAL (
    SELECT p.groupid FROM pg_dist_schema s JOIN pg_dist_partition t ON t.colocationid = s.colocationid
    JOIN pg_dist_shard d ON d.logicalrelid = t.logicalrelid JOIN pg_dist_placement p ON p.shardid = d.shardid
    WHERE s.schemaid = to_regnamespace(%s) LIMIT 1
) p, pg_dist_node n
WHERE c.groupid = 0 AND c.noderole = 'primary' AND n.groupid = p.groupid AND n.noderole = 'primary'
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
# The name by which each of these tables can be locked or emptied, if it exists.
PLACES = "SELECT n, n FROM unnest(%s) AS n WHERE to_regclass(n) IS NOT NULL"
PLACES_IN_CELL = """
SELECT c.relname, format('%%I.%%I', n.nspname, c.relname || '_' || s.shardid)
FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s) WITH ORDINALITY AS w(name, number) ON w.name = c.relname
WHERE n.nspname = current_setting('mailsvc.cell') ORDER BY w.number
"""


@attrs.frozen
class Address:
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@attrs.frozen
class Place:
    """The node that holds a cell, and the coordinator, as one node sees it. `here`, `coordinating`: whether that node is this one."""

    node: Address
    here: bool
    coordinator: Address
    coordinating: bool

    @classmethod
    def of(cls, row: tuple[str, int, bool, str, int, bool]) -> Place:
        """From a row of PLACE."""
        host, port, here, coordinator, coordinator_port, coordinating = row
        return cls(Address(host, port), here, Address(coordinator, coordinator_port), coordinating)


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


def at(dsn: str, address: Address) -> str:
    """The DSN with another server: whatever servers it names are left out."""
    given = {key: value for key, value in parse_dsn(dsn).items() if key != "hostaddr"}
    return str(make_dsn(**{**given, "host": address.host, "port": address.port}))


def cell_of(dsn: str) -> str | None:
    """The cell of a DSN that `directly` has made."""
    found = _CELL.findall(parse_dsn(dsn).get("options", ""))
    return found[-1] if found else None


def _with_options(dsn: str, settings: Mapping[str, str]) -> str:
    given = _OURS.sub("", parse_dsn(dsn).get("options", ""))
    return str(make_dsn(dsn, options=" ".join([given, *(f"-c{name}={value}" for name, value in settings.items())]).strip()))


def is_dsn(text: str) -> bool:
    """Whether libpq can use it. Of a password that is not encoded, it takes parts for the host or the port, or shows it in an error."""
    try:
        given = parse_dsn(text)
    except ProgrammingError:
        return False
    return "@" not in given.get("host", "") and (given.get("port") or "0").replace(",", "0").isdigit()
