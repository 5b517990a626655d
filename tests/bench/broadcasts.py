"""`python -m tests.bench.broadcasts [COUNT]`: a broadcast to COUNT contacts, from one process to a sink on the same machine.

First the engine alone puts the recipients into the queue. Then a daemon sends batches, and then the broadcast. It prints both rates, the
response time of the request that sends the broadcast, the daemon's memory, and the bytes that each recipient adds to the tables and their
indexes. In the end it sends 20 single emails a second, without a broadcast and during another one, and prints their latency. What it prints
is for docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import psycopg2
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.partitions import days
from mailsvc.store.postgres.pool import Pool
from tests.bench import load, machine
from tests.bench.machine import Sink
from tests.bench.product import Product
from tests.broadcasts.fixtures import BroadcastRig
from tests.broadcasts.many import fill
from tests.end_to_end.rig import Daemon, rows

HTML = 3200  # bytes of the page, as in the emails of the batches
SINGLE = 20  # emails a second beside the broadcast
BATCHED = 200_000  # emails in batches at most: long enough to include what follows a delivery (numbering, clearing the queue)
SHORT = 8000  # emails of a short run
PROBED = 15  # seconds for which single emails are sent
# Partitions count with their table.
SIZES = """
SELECT p.relname, sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid JOIN pg_class p ON p.oid = coalesce(i.inhparent, c.oid)
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace GROUP BY 1
"""


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.broadcasts", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--parts", default="fan-out,whole", help="of fan-out,whole")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if "fan-out" in given.parts:
            fan_out(folder, given.count)
        if "whole" in given.parts:
            machine.build(folder)
            with machine.sink(folder) as sink:
                whole(folder, sink, given.count)


# The engine alone


def fan_out(folder: Path, count: int) -> None:
    """How fast the engine fills the queue, with a Postgres and nothing else."""
    server = EmbeddedPostgres.at(folder / "postgres-of-the-engine")
    try:
        dsn = server.start_blocking()
        migrate(dsn)
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            for day in days(datetime.now(UTC), days_ahead=1):
                for statement in chain.from_iterable(day.values()):
                    cursor.execute(statement)
        connection.close()
        react(lambda reactor: Deferred.fromCoroutine(_fill(reactor, dsn, count)), _reactor=_reactor())
    except SystemExit:
        pass
    finally:
        server.stop_blocking()


def _reactor() -> Any:
    from twisted.internet import reactor

    return reactor


async def _fill(reactor: Any, dsn: str, count: int) -> None:
    pool = Pool(dsn, reactor, size=4, name="mailsvc bench")
    await pool.start()
    rig = BroadcastRig(pool, reactor, ahead=1_000_000_000)
    await rig.start()
    await rig.contacts(count)
    await pool.run("ANALYZE contacts, contact_segments")
    broadcast = await rig.send()
    begun = time.monotonic()
    while (await rig.get(broadcast)).ended_at is None:
        await rig.fanout.run()
        rig.clock.advance(1)
    seconds = time.monotonic() - begun
    print(f"fan-out alone: {count:,} recipients in {seconds:.1f} s, {count / seconds:,.0f} per second", flush=True)
    await pool.stop()


# A daemon


def whole(folder: Path, sink: Sink, count: int) -> None:
    """A broadcast from the request to the sink."""
    within = folder / "daemon"
    within.mkdir()
    product = Product(within, sink.port)
    product.start()
    try:
        daemon, dsn = product.first, product.postgres.dsn()
        key = str(daemon.facts["api_key"])
        segments = [daemon.call("POST", "/segments", {"name": name}, {}, key).body["id"] for name in ("All", "Some")]
        fill(dsn, segments[0], count)
        short = max(_batches(product, sink, key, max(min(SHORT, count), 100)) for _ in range(2))
        alone = _batches(product, sink, key, max(min(BATCHED, count), 100))
        _settled(dsn)
        before, used, memory = dict(rows(dsn, SIZES)), machine.cpu(product.pids), Memory(daemon)
        sink.command("reset")
        with memory.watched():
            begun, answered = _send(product, key, segments[0])
            rate = count / ((_arrived(sink, count) - begun) / 1e9)
        _settled(dsn)
        cpu = (machine.cpu(product.pids) - used) * 1000 / count
        print(f"POST /broadcasts/{{id}}/send: {answered:.0f} ms")
        print(f"from the request to the last arrival: {rate:,.0f} per second")
        for emails, batched in ((BATCHED, alone), (SHORT, short)):
            print(f"of the rate of {min(emails, count):,} emails in batches ({batched:,.0f} per second): {rate / batched:.2f}")
        print(f"CPU: {cpu:.2f} ms per recipient")
        print(memory)
        _sizes(dsn, before, count)
        fill(dsn, segments[1], PROBED * 5000)
        calm, during = _latencies(product, sink, key, segments[1])
        print(f"single emails, {SINGLE} per second: p95 {calm:.0f} ms without a broadcast, {during:.0f} ms during one")
        daemon.kill()  # what is checked at a stop would read all of it
        product.daemons.clear()
    finally:
        product.stop()


def _page() -> str:
    page = load.page(HTML)
    return page.replace("</table>", '</table><p>Hi {{{FIRST_NAME|there}}}, <a href="{{{RESEND_UNSUBSCRIBE_URL}}}">unsubscribe</a></p>')


def _batches(product: Product, sink: Sink, key: str, count: int) -> float:
    """Emails a second from `POST /emails/batch` to the sink."""
    sink.command("reset")
    done = load.run(product.first.port, key, product.sender, emails=count, per_call=100, connections=4, size=4096, first=0)
    stats = sink.until(count, 600)
    time.sleep(1)
    return count / ((int(str(stats["last_ns"])) - done.started_ns) / 1e9)


def _latencies(product: Product, sink: Sink, key: str, segment: str) -> tuple[float, float]:
    """The p95 of single emails in milliseconds, from the request to the sink: without a broadcast, and during one."""
    found = []
    for broadcast in (False, True):
        if broadcast:
            _send(product, key, segment)
            time.sleep(5)  # for the queue to fill
        sink.command("reset")
        with singles(product, key) as sent:
            time.sleep(PROBED)
        stats = sink.until(sent[0])
        latency = stats["e2e_ms"]
        assert isinstance(latency, dict)
        found.append(float(latency["p95"]))
        if broadcast:
            print(f"meanwhile, {int(str(stats['count'])) - sent[0]:,} emails of the broadcast arrived in {PROBED} s")
    return found[0], found[1]


@contextmanager
def singles(product: Product, key: str) -> Iterator[list[int]]:
    """Sends single emails at a steady rate, whatever becomes of them. Yields their number so far."""
    stop, sent = threading.Event(), [0]
    html, port = load.page(HTML), product.first.port

    def work(first: int, step: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 30) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begun, number = time.monotonic(), first
            while not stop.wait(max(0.0, begun + number / SINGLE - time.monotonic())):
                status, answer = load._post(link, "/emails", key, json.dumps(load.email(product.sender, number, html)).encode())
                assert status == 200, answer
                sent[0] += 1
                number += step

    threads = [threading.Thread(target=work, args=(n, 4), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@attrs.define
class Memory:
    """The daemon's memory over time, in MB."""

    daemon: Daemon
    seen: list[float] = attrs.field(factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        stop = threading.Event()

        def look() -> None:
            assert self.daemon.process is not None
            while not stop.wait(1.0):
                pages = int(Path(f"/proc/{self.daemon.process.pid}/statm").read_text().split()[1])
                self.seen.append(pages * 4096 / 1e6)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(5)

    def __str__(self) -> str:
        tenths = [self.seen[n * (len(self.seen) - 1) // 10] for n in range(11)]
        return f"memory of the daemon, MB, from the beginning to the end: {', '.join(f'{each:.0f}' for each in tenths)}"


def _send(product: Product, key: str, segment: str) -> tuple[int, float]:
    """Creates and sends a broadcast. Returns when, in Unix nanoseconds, and the response time in milliseconds."""
    content = {"name": "News", "segment_id": segment, "from": f"Acme <{product.sender}>", "subject": "News for {{{FIRST_NAME|you}}}"}
    broadcast = product.first.call("POST", "/broadcasts", {**content, "html": _page()}, {}, key).body["id"]
    begun = time.time_ns()
    answer = product.first.call("POST", f"/broadcasts/{broadcast}/send", {}, {}, key)
    assert answer.status == 200, answer
    return begun, (time.time_ns() - begun) / 1e6


def _arrived(sink: Sink, count: int) -> int:
    """Waits for all emails. Returns when the last one arrived."""
    seen, since = -1, time.monotonic()
    while (arrived := int(str((stats := sink.command("stats"))["count"]))) < count:
        if arrived > seen:
            seen, since = arrived, time.monotonic()
        assert time.monotonic() < since + 60, f"{arrived} of {count} arrived"
        time.sleep(0.2)
    return int(str(stats["last_ns"]))


def _settled(dsn: str) -> None:
    deadline = time.monotonic() + 120
    while rows(dsn, "SELECT count(*) FROM fresh_events")[0][0] or rows(dsn, "SELECT count(*) FROM queue")[0][0]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _sizes(dsn: str, before: dict[str, int], count: int) -> None:
    grown = {name: size - before.get(name, 0) for name, size in rows(dsn, SIZES)}
    for name, size in sorted(grown.items(), key=lambda each: -each[1]):
        if size > 2 * count:
            print(f"{name}: {size / count:,.0f} bytes per recipient")
    total = sum(size for size in grown.values() if size > 0)  # a table that shrank lost rows of the batches before
    print(f"together: {total / count:,.0f} bytes per recipient, {total / count / 1000:.2f} GB for 1,000,000")


if __name__ == "__main__":
    main()
