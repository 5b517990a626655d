"""The nodes of a cluster and the cells on them: listing, creating and moving. For commands: all of it blocks.

Where a cell is, Citus records; this module asks any node that answers, and has the coordinator change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import attrs
import psycopg2
from psycopg2 import extensions, sql

from mailsvc.store.cells.lease import holder
from mailsvc.store.cells.views import NotHere, find, suit
from mailsvc.store.postgres.cells import Address, at
from mailsvc.store.postgres.migrate import create_tables
from mailsvc.store.postgres.server_settings import STANDBYS, Standbys
from mailsvc.store.postgres.targets import OPTIONS, bounded

T = TypeVar("T")
ASKED = 32  # nodes at once
TRIES = 5
PAUSE = 1.0  # seconds between two tries
SESSION = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
_NODES = """
SELECT nodename, nodeport, groupid = 0, shouldhaveshards AND isactive FROM pg_dist_node WHERE noderole = 'primary' ORDER BY groupid
"""
_CELLS = """
SELECT n.nspname, min(w.nodename), min(w.nodeport) FROM pg_dist_schema s JOIN pg_namespace n ON n.oid = s.schemaid
LEFT JOIN pg_dist_partition t ON t.colocationid = s.colocationid LEFT JOIN pg_dist_shard d ON d.logicalrelid = t.logicalrelid
LEFT JOIN pg_dist_placement p ON p.shardid = d.shardid LEFT JOIN pg_dist_node w ON w.groupid = p.groupid AND w.noderole = 'primary'
GROUP BY 1 ORDER BY 1
"""
# Of the cells on one node: Citus hides their tables from the catalog, unless it is told otherwise.
_STATES = f"""
SELECT n.nspname, sum(pg_total_relation_size(c.oid))::bigint, {holder("n.nspname")}
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = ANY (%s) GROUP BY 1
"""
_PLACED = "SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace"


class Unreachable(Exception):
    """No node answers. The text is a sentence for the operator."""


class Refused(Exception):
    """What was asked cannot be done. The text is a sentence for the operator."""


@attrs.frozen
class Node:
    """A server of the cluster. `takes_cells`: whether cells may be put there. `bytes`: of its database; None if it cannot be reached.

    `standbys`: None if it cannot be reached.
    """

    address: Address
    region: str | None
    coordinator: bool
    takes_cells: bool
    bytes: int | None
    standbys: Standbys | None = None


@attrs.frozen
class Cell:
    """`node` None: it has no tables yet. `bytes` None: its node cannot be reached. `machine`: that with its lease, if machines share it."""

    name: str
    node: Address | None
    region: str | None
    bytes: int | None
    machine: str | None = None


@attrs.frozen
class Cluster:
    """`url`: the DSN of any nodes. `regions`: the region of each node, by host and port."""

    url: str = attrs.field(repr=False)
    regions: Mapping[str, str]

    def nodes(self) -> list[Node]:
        """All nodes, the coordinator first."""
        connection = _connect(self.url)
        try:
            rows = _rows(connection, _NODES)
        finally:
            connection.close()
        addresses = [Address(host, port) for host, port, _, _ in rows]
        states = _at_once(self._state, addresses)
        return [
            Node(address, self.regions.get(str(address)), first, takes, *state)
            for address, (_, _, first, takes), state in zip(addresses, rows, states, strict=True)
        ]

    def cells(self) -> list[Cell]:
        connection = _connect(self.url)
        try:
            rows = _rows(connection, _CELLS)
        finally:
            connection.close()
        places = {name: None if host is None else Address(host, port) for name, host, port in rows}
        used = {each for each in places.values() if each is not None}
        found = _at_once(lambda node: self._ask(node, _STATES, ([name for name, place in places.items() if place == node],)), used)
        states = {name: state for rows in found for name, *state in rows}
        return [Cell(name, place, self.regions.get(str(place)), *states.get(name, (None,))) for name, place in places.items()]

    def create(self, cell: str, region: str | None = None) -> Address:
        """Create a cell on the emptiest node of the region. An interrupted creation is completed. Returns the node."""
        coordinator = self._coordinator()
        if cell in {each.name for each in self.cells() if each.bytes} and self._complete(coordinator, cell):
            raise Refused(f"There is a cell {cell} already.")
        node = self._emptiest(region)
        connection = _connect(coordinator)
        try:
            if not _rows(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", (cell,)):
                _run(connection, "SET citus.enable_schema_based_sharding = on")
                _run(connection, sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(cell)))
            if not _rows(connection, _PLACED, (cell,))[0][0]:  # where the first table is, the others will be
                _run(connection, sql.SQL("CREATE TABLE {} (nothing integer PRIMARY KEY)").format(sql.Identifier(cell, "placeholder")))
            if find(coordinator, cell).node != node:
                self._transfer(connection, cell, node)
            create_tables(coordinator, cell)
            _run(connection, sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(cell, "placeholder")))
        finally:
            connection.close()
        return node

    def check_move(self, cell: str, to: Address) -> Address:
        """Refuse a move that cannot be made. Returns where the cell is."""
        nodes = {node.address: node for node in self.nodes()}
        if to not in nodes:
            raise Refused(f"The cluster has no node {to}. Its nodes: {', '.join(map(str, nodes))}.")
        here = find(self.url, cell).node
        if here == to:
            raise Refused(f"The cell {cell} is on {to} already.")
        if moving := self._accounts_moving(here, cell):
            raise Refused(f"Accounts are being moved from or to {cell}: {', '.join(moving)}. Complete or undo that first.")
        if (region := self.regions.get(str(here))) != nodes[to].region:
            raise Refused(f"{to} is not in {region or 'the same region'}, and accounts of {cell} may have to stay in their region.")
        return here

    def _accounts_moving(self, node: Address, cell: str) -> list[str]:
        """The triggers of such a move are not on the other node (account_changes)."""
        moves = sql.Identifier(cell, "account_moves")
        connection = _connect(at(self.url, node))
        try:
            if not _rows(connection, "SELECT 1 WHERE to_regclass(%s) IS NOT NULL", (f"{cell}.account_moves",)):
                return []  # before its migration
            statement = sql.SQL("SELECT account_id::text FROM {} WHERE finished_at IS NULL ORDER BY 1").format(moves)
            return [account for (account,) in _rows(connection, statement)]
        finally:
            connection.close()

    def move(self, cell: str, to: Address) -> None:
        """Move a cell to another node of its region while it is used."""
        self.check_move(cell, to)
        coordinator = self._coordinator()
        suit(coordinator, cell)
        connection = _connect(coordinator)
        try:
            self._transfer(connection, cell, to)
        finally:
            connection.close()

    def _transfer(self, connection: extensions.connection, cell: str, to: Address) -> None:
        for left in reversed(range(TRIES)):
            try:
                _run(connection, "SELECT citus_schema_move(%s, %s, %s)", (cell, to.host, to.port))
                return
            except psycopg2.InternalError:  # an earlier move left tables on the node that are being removed
                if not left:
                    raise
                time.sleep(PAUSE)
                _run(connection, "CALL citus_cleanup_orphaned_resources()")

    def _coordinator(self) -> str:
        return at(self.url, next(node.address for node in self.nodes() if node.coordinator))

    def _complete(self, coordinator: str, cell: str) -> bool:
        """Whether its creation has ended: its last step is to drop the placeholder."""
        connection = _connect(coordinator)
        try:
            return not _rows(connection, "SELECT 1 FROM pg_class WHERE oid = to_regclass(%s)", (f"{cell}.placeholder",))
        finally:
            connection.close()

    def _emptiest(self, region: str | None) -> Address:
        reachable = [node for node in self.nodes() if node.takes_cells and node.bytes is not None and region in (None, node.region)]
        if not reachable:
            where = "of the cluster" if region is None else f"of the region {region}"
            raise Refused(f"No node {where} takes cells. See `mailsvc cell list`, database.node_regions and citus_set_node_property.")
        return min(reachable, key=lambda node: node.bytes or 0).address

    def _state(self, address: Address) -> tuple[int | None, Standbys | None]:
        """The size of its database, and its standbys."""
        sizes, standbys = self._ask(address, "SELECT pg_database_size(current_database())"), self._ask(address, STANDBYS)
        return (sizes[0][0], Standbys(*standbys[0])) if sizes and standbys else (None, None)

    def _ask(self, address: Address, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Nothing, if the node cannot be reached."""
        try:
            connection = _connect(at(self.url, address), "-c citus.override_table_visibility=off -c statement_timeout=10000")
        except Unreachable:
            return []
        try:
            return _rows(connection, statement, parameters)
        except psycopg2.OperationalError:
            return []
        finally:
            connection.close()


def _at_once(ask: Callable[[Address], T], nodes: Collection[Address]) -> list[T]:
    """Ask all nodes, so that those that cannot be reached are waited for together."""
    with ThreadPoolExecutor(ASKED) as threads:
        return list(threads.map(ask, nodes))


def _connect(dsn: str, options: str = SESSION) -> extensions.connection:
    try:
        connection = psycopg2.connect(bounded(dsn), options=f"{OPTIONS} {options}")
    except psycopg2.OperationalError as error:
        raise Unreachable(" ".join(str(error).split())) from None
    connection.autocommit = True
    if not _rows(connection, "SELECT 1 FROM pg_extension WHERE extname = 'citus'"):
        connection.close()
        raise NotHere("The database is not one of a Citus cluster: it lacks the extension citus.")
    return connection


def _rows(connection: extensions.connection, statement: str | sql.Composable, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall()


def _run(connection: extensions.connection, statement: str | sql.Composable, parameters: tuple[object, ...] = ()) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
