"""`python -m tests.bench.shown`: what a table of rates does not show. Each part is bounded and prints one paragraph.

growth: rates with 1,000,000 emails and 5,000,000 events in the tables, beside those of an empty database in the same round.
memory: the daemon's memory while 100,000 emails pass.
turns: the longest turn of the reactor while mails of 4 KB, mails of 40 MB and batches pass at once.
bodies: mails of 40 MB, accepted while nobody delivers, then delivered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg2

from tests.bench import load, machine, mails
from tests.bench.__main__ import SMTP_50, Bench, Way, spread
from tests.bench.machine import Sink
from tests.bench.million import EMAILS, MADE
from tests.bench.product import SPLIT, Product
from tests.bench.turns import Watched

BATCH = Way("batch", 4, per_call=100, emails=4000)
BODY = 40_000_000
TURN = """  {wall_ms} ms, {held_ms} held, {cpu_ms} of CPU ({system_ms} in the kernel); {ready} descriptors, the most {worst};
    collections {collected}"""
# Five events an email; the last one ends it.
EVENTS = """
INSERT INTO events (account_id, email_id, event_id, recipient, type, at)
SELECT %(account)s, id, overlay(id::text placing n::text from 25 for 1)::uuid, 0, kind, at
FROM made, unnest(ARRAY['email.sent', 'email.delivery_delayed', 'email.delivery_delayed', 'email.delivered', 'email.opened'])
     WITH ORDINALITY AS kinds(kind, n)
"""


def rate(bench: Bench, product: Product, way: Way) -> float:
    if way.per_call:
        return bench.http(way, product, product.pids).rate
    return bench.smtp(way, product.relay, product.sender, product.login if way.login else (), product.pids).rate


def growth(bench: Bench, folder: Path, share: float) -> None:
    count = int(1_000_000 * share)
    empty, full = Product(folder / "empty", bench.sink.port), Product(folder / "full", bench.sink.port)
    for product in (empty, full):
        product.folder.mkdir()
        product.start()
    began = time.monotonic()
    link = psycopg2.connect(full.postgres.dsn())
    with link, link.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        for statement in (MADE, EMAILS, EVENTS):
            cursor.execute(statement, {"account": full.first.facts["account_id"], "count": count})
    link.autocommit = True
    with link.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    link.close()
    print(f"{count:,} emails and {5 * count:,} events were put into the tables in {time.monotonic() - began:.0f} s.", flush=True)
    for way in (SMTP_50, BATCH):
        rate(bench, empty, way), rate(bench, full, way)
        pairs = [(rate(bench, empty, way), rate(bench, full, way)) for _ in range(3)]
        ratios = spread([there / without for without, there in pairs], "{:.2f}")
        print(
            f"{way.name}: {spread([p[0] for p in pairs], '{:.0f}')} a second with empty tables, with full ones {ratios} of it", flush=True
        )
    full.first.kill()  # what is checked at a stop would read all of it
    full.daemons.clear()
    for product in (empty, full):
        product.stop()


def memory(bench: Bench, folder: Path, share: float) -> None:
    product = Product(folder, bench.sink.port)
    product.start()
    daemon = product.first
    assert daemon.process is not None
    figures = []
    for _ in range(5):
        bench.sink.command("reset")
        count = int(20_000 * share)
        load.run(daemon.port, str(daemon.facts["api_key"]), product.sender, emails=count, per_call=100, connections=4, size=4096, first=0)
        bench.sink.until(count)
        pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
        figures.append(pages * 4096 / 1e6)
    product.stop()
    print(f"memory: MB resident after each of five times {count:,} emails: {', '.join(f'{each:.0f}' for each in figures)}")


def send(bench: Bench, product: Product, size: int, sessions: int, count: int) -> dict[str, object]:
    """Sends over SMTP with TLS and login. Returns the load's report."""
    file = bench.folder / f"{size}.eml"
    file.write_bytes(mails.mail(product.sender, size))
    command = [bench.folder / "smtpload", "-p", product.relay, "-s", sessions, "-m", count, "-F", file, "-f", product.sender]
    done = subprocess.run([str(word) for word in (*command, *product.login)], capture_output=True, text=True)
    result: dict[str, object] = json.loads(done.stdout)
    assert not result["errors"], result["first_error"]
    return result


def turns(bench: Bench, folder: Path, share: float) -> None:
    product = Product(folder, bench.sink.port, make=Watched)
    product.start()
    daemon = product.first
    assert isinstance(daemon, Watched)
    send(bench, product, 4096, 10, 200)
    daemon.figures_since()
    bodies, small, batches = max(2, int(8 * share)), int(6000 * share), max(4, int(30 * share))
    key = str(daemon.facts["api_key"])

    def post() -> None:
        load.run(daemon.port, key, product.sender, emails=100 * batches, per_call=100, connections=2, size=4096, first=0, alike=False)

    works: tuple[Callable[[], object], ...] = (
        lambda: send(bench, product, 4096, 20, small),
        lambda: send(bench, product, BODY, 2, bodies),
        post,
    )
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = daemon.figures_since()
    product.stop()
    longest = result["longest"]
    print(
        f"turns: {result['turns']} of the reactor, {result['long']} of 10 ms or more; the longest {longest['wall_ms']:.0f} ms,"
        f" without waiting for a processor {longest['held_ms']:.0f}, of CPU {longest['cpu_ms']:.0f}"
        f" ({small:,} mails of 4 KB, {bodies} of 40 MB, {batches} batches of 100 at once)"
    )
    for generation, (number, seconds, most) in enumerate(result["collections"]):
        print(f"  {number} collections of generation {generation}: {seconds * 1000:.0f} ms, the longest {most * 1000:.1f} ms")
    for turn in result["made_of"]:
        print(TURN.format(**turn))
        for stack, count in turn["seen"]:
            print(f"    {count} × {stack}")


def bodies(bench: Bench, folder: Path, share: float) -> None:
    product = Product(folder, bench.sink.port, SPLIT[:1])
    product.start()
    count = max(3, int(10 * share))
    bench.sink.command("reset")
    result = send(bench, product, BODY, 2, count)
    product.add(SPLIT[1])
    stats = bench.sink.until(count)
    between = (int(str(stats["last_ns"])) - int(str(stats["first_ns"]))) / 1e9
    product.stop()
    print(
        f"bodies: {count} mails of 40 MB over 2 connections accepted at {count * BODY / float(str(result['wall_s'])) / 1e6:.0f} MB/s,"
        f" then delivered at {(count - 1) * BODY / between / 1e6:.0f} MB/s"
    )


PARTS: dict[str, Callable[[Bench, Path, float], None]] = {"bodies": bodies, "turns": turns, "memory": memory, "growth": growth}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench.shown", description=__doc__)
    options.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options.add_argument("--share", type=float, default=1.0, help="of the mails and rows of each part (0.01–10)")
    chosen = options.parse_args()
    share = min(10.0, max(0.01, chosen.share))
    with tempfile.TemporaryDirectory(prefix="mailsvc-shown-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        machine.build(folder)
        for part in [part for part in PARTS if part in chosen.parts.split(",")]:
            with machine.sink(folder) as sink:
                within = folder / part
                within.mkdir()
                within.chmod(0o755)
                PARTS[part](Bench(folder, Sink(sink.port, sink.control), min(1.0, share)), within, share)


if __name__ == "__main__":
    main()
