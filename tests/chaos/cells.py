"""Experiments on cells: moved under load, and with servers of the cluster killed or stopped. They need Citus (tests/chaos/citus_nodes)."""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import psycopg2

from mailsvc.store.cells import nodes
from mailsvc.store.cells.views import NotHere
from mailsvc.store.postgres.cells import Address
from tests.chaos.citus_nodes import CellServer, Cluster
from tests.chaos.cluster import place
from tests.chaos.experiments import CONNECTIONS, _all, _finish
from tests.chaos.ground import Client, Figures, TimedSink, ground, in_background, p95, sink, until
from tests.chaos.networks import LOOPBACK, Host

CELLS = ("red", "blue")
SLOWER = 1.5  # times by which the mail of one cell may take longer while the server of another stands still
OR_BY = 0.010  # seconds
GAP = 0.1  # seconds between two batches, so that the load lasts as long as the moves


@contextmanager
def clustered(count: int = 1, hosts: Sequence[Host] = (LOOPBACK,) * 3) -> Iterator[list[CellServer]]:
    """A cluster with this number of cells, each on a worker of its own. `hosts`: where its nodes are."""
    with cluster_with(count, hosts) as cluster:
        yield [CellServer(cluster, name) for name in CELLS[:count]]


@contextmanager
def cluster_with(count: int, hosts: Sequence[Host] = (LOOPBACK,) * 3) -> Iterator[Cluster]:
    with place() as folder:
        cluster = _model(count).copy_to(folder / "cluster", hosts)
        try:
            yield cluster
        finally:
            cluster.stop()


@cache
def _model(count: int) -> Cluster:
    """A stopped cluster with this number of cells, of which tests get copies: creating one takes ten seconds. Deleted with the process."""
    folder = _models.enter_context(place()) / "cluster"
    cluster = _model(count - 1).copy_to(folder) if count else Cluster.start(folder)
    try:
        if count:
            made, server = nodes.Cluster(cluster.url, {}), CellServer(cluster, CELLS[count - 1])
            made.create(server.cell)
            if server.node() is not (worker := cluster.workers[count - 1]):
                made.move(server.cell, Address(*worker.address))
    finally:
        for node in cluster.nodes:
            node.stop("fast")
    return cluster


_models = ExitStack()
atexit.register(_models.close)


def moved_cell(emails: int, moves: int) -> Figures:
    """T29: a cell is moved to and fro under load."""
    figures, began = Figures("T29 a cell is moved"), time.monotonic()
    with sink() as target, clustered() as [server], ground(server) as here:
        client = Client(here.daemon({**_all(target.port), **server.settings}))
        stop, waits = threading.Event(), []

        def send() -> None:
            for number in range(1_000_000):
                if stop.is_set() and len(client.ids) >= emails:
                    return
                started = time.monotonic()
                client.batch(f"c{number}-{each}@example.net" for each in range(5))
                waits.append(time.monotonic() - started)
                stop.wait(GAP)

        sending = in_background(send)
        until(lambda: len(client.ids) >= 20, 60, "the first emails")
        for _ in range(moves):
            before, sent = server.place(), len(client.ids)
            server.move()
            assert server.place() != before
            until(lambda sent=sent: len(client.ids) > sent, 60, "the acceptance after the move")
        stop.set()
        sending.join(600)
        assert not sending.is_alive()
        _finish(figures, here, target, client.ids, 120)
    figures.notes = {"moves": moves, "refused": len(client.refused), "longest wait": f"{max(waits):.1f} s"}
    assert figures.lost == 0
    # A statement that is still running when the cell is let go has an unknown outcome.
    assert figures.duplicates <= moves * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def killed_while_moving(emails: int, kills: int) -> Figures:
    """T30: while a cell is moved, the coordinator, the old node, the new one and the daemon are killed in turn."""
    figures, began = Figures("T30 kills while a cell is moved"), time.monotonic()
    moments, stop, ended = random.Random(2029), threading.Event(), []
    with sink() as target, clustered() as [server], ground(server) as here:
        daemon = here.daemon({**_all(target.port), **server.settings})
        client = Client(daemon)

        def send() -> None:
            for number in range(emails // 5):
                client.batch(f"c{number}-{each}@example.net" for each in range(5))
                time.sleep(GAP)

        sending = in_background(send)

        def keep_moving() -> None:
            while not stop.is_set():
                with suppress(psycopg2.Error, nodes.Refused, nodes.Unreachable, NotHere, StopIteration):
                    server.move()
                    ended.append(time.monotonic())
                time.sleep(0.2)

        moving = in_background(keep_moving)
        for number in range(kills):
            time.sleep(moments.uniform(1.0, 4.0))
            if number % 4 == 3:
                daemon.kill()
                daemon.start()
            else:
                victim = server.cluster.nodes[number % 4]
                victim.kill()
                time.sleep(moments.uniform(0.2, 2.0))
                victim.start()
        sending.join(600)
        assert not sending.is_alive(), f"{len(client.ids)} accepted\n{daemon.log[-3000:]}"
        stop.set()
        moving.join(120)
        assert not moving.is_alive()
        _finish(figures, here, target, client.ids, 120)
    figures.notes = {"kills": kills, "completed moves": len(ended), "duplicates allowed": kills * CONNECTIONS}
    assert figures.lost == 0
    assert figures.duplicates <= kills * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


def without_coordinator(emails: int) -> Figures:
    """T31: the coordinator is away. A running process goes on, and a new one can start."""
    figures, began = Figures("T31 the coordinator is away"), time.monotonic()
    with sink() as target, clustered() as [server], ground(server) as here:
        settings = {**_all(target.port), **server.settings}
        client = Client(here.daemon(settings))
        client.batch(f"a{n}@example.net" for n in range(emails // 3))
        server.cluster.coordinator.kill()
        client.batch(f"b{n}@example.net" for n in range(emails // 3))
        here.daemon(settings)
        client.batch(f"c{n}@example.net" for n in range(emails // 3))
        until(lambda: set(client.ids) <= target.ids(), 60, "delivery without the coordinator")
        server.cluster.coordinator.start()
        _finish(figures, here, target, client.ids, 120)
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def stopped_worker(emails: int) -> Figures:
    """T32: of two cells on two workers, the server of one stands still. The other's mail takes as long as before."""
    figures, began = Figures("T32 the worker of another cell stands still"), time.monotonic()
    with sink() as target, clustered(2) as [red, blue], ground(red) as one, ground(blue) as other:
        stopped = Client(one.daemon({**_all(target.port), **red.settings}))
        client = Client(other.daemon({**_all(target.port), **blue.settings}))
        stopped.batch(f"r{n}@example.net" for n in range(20))
        before = _latencies(client, target, emails)
        standing = red.node()
        standing.pause()
        try:
            meanwhile = in_background(lambda: stopped.batch(f"s{n}@example.net" for n in range(20)))
            during = _latencies(client, target, emails)
        finally:
            standing.resume()
        meanwhile.join(120)
        assert not meanwhile.is_alive(), "the other cell did not resume"
        _finish(Figures(figures.name), one, target, stopped.ids, 120)
        _finish(figures, other, target, client.ids, 120)
    figures.notes = {"p95 before": f"{p95(before) * 1000:.0f} ms", "p95 during": f"{p95(during) * 1000:.0f} ms"}
    assert p95(during) <= max(p95(before) * SLOWER, p95(before) + OR_BY), figures.notes
    assert figures.lost == 0
    figures.seconds = time.monotonic() - began
    return figures


def _latencies(client: Client, target: TimedSink, emails: int) -> list[float]:
    """Seconds from the request to the arrival, of single emails."""
    ids = [client.one(f"l{n}@example.net") for n in range(emails)]
    until(lambda: set(ids) <= target.ids(), 60, "the arrival")
    return [target.times[each] - client.sent_at[each] for each in ids]
