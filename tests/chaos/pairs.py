"""Pairs of servers, a primary and its standby: one Postgres, and the node of a cell. For those that Patroni runs: tests/chaos/patroni."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
from psycopg2.extensions import make_dsn

from tests.chaos.cells import clustered
from tests.chaos.citus_nodes import CellServer, Node, administer
from tests.chaos.cluster import NAME, Cluster, with_standby


@attrs.frozen
class Pair:
    """`server` and `dsn`: what daemons use, with these `settings`. `promote`: what an operator does once the primary is lost."""

    primary: Cluster | Node
    standby: Cluster | Node
    server: Cluster | CellServer
    promote: Callable[[], object]
    dsn: str | None = None
    settings: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)


@contextmanager
def one_postgres() -> Iterator[Pair]:
    with with_standby() as (primary, standby):
        ports = f"{primary.port},{standby.port}"
        dsn = make_dsn(host="127.0.0.1,127.0.0.1", port=ports, user=NAME, dbname=NAME, target_session_attrs="read-write")
        yield Pair(primary, standby, standby, lambda: administer(standby.dsn, "SELECT pg_promote()"), dsn)


@contextmanager
def node_of_cell() -> Iterator[Pair]:
    with clustered() as [server]:
        yield _in_cluster(server, server.node())


@contextmanager
def coordinator_of_cell() -> Iterator[Pair]:
    with clustered() as [server]:
        yield _in_cluster(server, server.cluster.coordinator)


def _in_cluster(server: CellServer, primary: Node) -> Pair:
    """The standby is not in `database.url`: its address comes from Citus."""
    standby = server.cluster.add_standby(primary)
    return Pair(primary, standby, server, lambda: server.cluster.promote(standby, primary), settings=server.settings)
