"""For `make scale`: CPU per email in a cell on a worker and on plain Postgres, and statements at the coordinator.

Both servers are Debian's Postgres 15 with the same settings, in memory; rounds alternate. It needs Citus (tests/chaos/citus_nodes).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg2.extensions import make_dsn

from mailsvc.store.cells import nodes
from tests.bench.machine import cpu
from tests.chaos.cells import clustered
from tests.chaos.citus_nodes import DATABASE, ROLE, CellServer, Node, RunningServer, administer
from tests.chaos.cluster import place
from tests.chaos.experiments import _all
from tests.chaos.ground import Client, Ground, TimedSink, ground, sink, until
from tests.end_to_end.rig import free_port, rows, with_tables
from tests.memory import QUICK

THREADS = 8
# All but the one with which each process sees every 15 seconds whether the coordinator can be reached.
STATEMENTS = """
    SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid
    WHERE r.rolname = %s AND s.query NOT LIKE '%%pg_is_in_recovery()%%'
"""


def measure(rounds: int, emails: int) -> None:
    plain, cell, asked = [], [], []
    with clustered() as [server], standing_alone() as (alone, dsn):
        with ground(RunningServer(dsn)) as beside, ground(RunningServer(server.dsn)) as inside:
            for _ in range(rounds):
                plain.append(spent(beside, alone, alone, {}, emails)[0])
                cost, count = spent(inside, server.node(), server.cluster.coordinator, server.settings, emails)
                cell.append(cost)
                asked.append(count)
        catalogue, seconds = one_more(server)
    ratio = statistics.median(cell) / statistics.median(plain)
    print(f"CPU per email: plain Postgres {row(plain)}, a cell on a worker {row(cell)}, ratio {ratio:.2f}")  # noqa: T201
    print(f"statements at the coordinator in each round of {emails} emails: {asked}")  # noqa: T201
    print(f"one more cell, with partitions: {seconds:.0f} s, {catalogue / 1e6:.1f} MB of catalogue at each node")  # noqa: T201


def one_more(server: CellServer) -> tuple[int, float]:
    """Bytes by which a further cell enlarges the database of a node that does not hold it, and seconds to create it."""
    cluster, began = server.cluster, time.monotonic()
    before = size(cluster.coordinator)
    other = CellServer(cluster, "more")
    nodes.Cluster(cluster.url, {}).create(other.cell)
    with ground(other) as here:
        here.daemon({**_all(free_port()), **other.settings})
    return size(cluster.coordinator) - before, time.monotonic() - began


def size(node: Node) -> int:
    return int(str(node.query("SELECT pg_database_size(current_database())")[0][0]))


@contextmanager
def standing_alone() -> Iterator[tuple[Node, str]]:
    """A server without Citus."""
    with place() as folder:
        node = Node(folder / "plain", free_port())
        node.create()
        node.start({**QUICK, "shared_preload_libraries": "pg_stat_statements"})
        administer(make_dsn(node.dsn, dbname="postgres"), f"CREATE ROLE {ROLE} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        administer(node.dsn, "CREATE EXTENSION pg_stat_statements")
        try:
            yield node, make_dsn(node.dsn, user=ROLE)
        finally:
            node.stop()


def spent(here: Ground, node: Node, watched: Node, settings: dict[str, dict[str, object]], emails: int) -> tuple[float, int]:
    """CPU seconds of a daemon and the node for each email, from its acceptance to its last event; and statements at `watched`."""
    with sink() as target:
        daemon = here.daemon({**_all(target.port), **settings})
        assert daemon.process is not None
        roots = [daemon.process.pid, node.pid]
        _send(Client(daemon), target, 200)  # after these, partitions exist and statements are prepared
        where = with_tables(here.dsn)  # asked directly, so that no statement of this program is counted
        watched.query("SELECT pg_stat_statements_reset()")
        before = cpu(roots)
        _send(Client(daemon), target, emails)
        until(lambda: rows(where, "SELECT count(*) FROM queue") == [(0,)], 60, "an empty queue")
        cost, statements = (cpu(roots) - before) / emails, int(str(watched.query(STATEMENTS, (ROLE,))[0][0]))
        daemon.stop()
        return cost, statements


def _send(client: Client, target: TimedSink, emails: int) -> None:
    clients = [Client(client.daemon) for _ in range(THREADS)]

    def send(number: int) -> None:
        for each in range(emails // THREADS):
            clients[number].one(f"m{number}-{each}@example.net", prefix=f"{time.time_ns()}-{number}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {each for one in clients for each in one.ids}
    until(lambda: len(target.received) >= len(wanted), 120, "the arrival")


def row(values: list[float]) -> str:
    low, middle, high = (f"{value * 1000:.2f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ms ({low}–{high})"
