"""`make bench`: emails a second from accepted to delivered, by single POSTs and by batches, and the CPU that each costs.

One daemon in one process on the embedded Postgres with its default durability, a sink in C as the only mail exchanger,
everything on loopback. Bounded in number: a run ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from mailsvc.store.embedded import EmbeddedPostgres
from tests.bench import load
from tests.whole.rig import Daemon, free_port

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Way:
    """One way in: how many emails in a call, over how many connections."""

    name: str
    per_call: int
    connections: int
    emails: int


WAYS = (Way("POST /emails", 1, 32, 6000), Way("POST /emails/batch of 100", 100, 4, 12000))


@attrs.frozen
class Figures:
    """What one round of a way came to; CPU in milliseconds an email."""

    accepted: float
    delivered: float
    p50: float
    p99: float
    python: float
    postgres: float


def cpu(root: int) -> float:
    """CPU seconds of a process and all that it started, running or ended."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], used[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total = 0
    for pid, ticks in used.items():
        above = pid
        while above and above != root:
            above = parents.get(above, 0)
        total += ticks if above else 0
    return total / TICKS


@contextmanager
def sink() -> Iterator[tuple[int, int]]:
    """A counting SMTP server: its port and the port that tells its counts."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "smtpsink"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "smtpsink.c", "-lssl", "-lcrypto", "-lpthread"], check=True)
        port, control = free_port(), free_port()
        process = subprocess.Popen([program, "-p", str(port), "-c", str(control)])
        try:
            yield port, control
        finally:
            process.terminate()
            process.wait(10)


def ask(control: int, what: str) -> dict[str, object]:
    """`stats` or `reset` of the sink."""
    for _ in range(50):
        try:
            link = socket.create_connection(("127.0.0.1", control), 5)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    with link:
        link.sendall(what.encode())
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found


def measure(way: Way, daemon: Daemon, postgres: int, control: int, size: int, first: int) -> Figures:
    """One round: load, wait until the sink has it all, and count."""
    ask(control, "reset")
    facts = daemon.facts
    assert daemon.process is not None
    python, database = cpu(daemon.process.pid), cpu(postgres)
    sent = load.run(
        daemon.port,
        str(facts["api_key"]),
        f"bench@{facts['domain']}",
        emails=way.emails,
        per_call=way.per_call,
        connections=way.connections,
        size=size,
        first=first,
    )
    deadline = time.monotonic() + 120
    while int(str((stats := ask(control, "stats"))["unique"])) < way.emails:
        assert time.monotonic() < deadline, f"{stats['unique']} of {way.emails} arrived"
        time.sleep(0.1)
    time.sleep(0.5)  # what follows a delivery (settling, numbering) is part of its cost
    span = (int(str(stats["last_ns"])) - sent.started_ns) / 1e9
    each = 1000 / way.emails
    return Figures(
        accepted=sent.rate,
        delivered=way.emails / span,
        p50=sent.quantile(0.5) * 1000,
        p99=sent.quantile(0.99) * 1000,
        python=(cpu(daemon.process.pid) - python) * each,
        postgres=(cpu(postgres) - database) * each,
    )


def row(name: str, rounds: list[Figures]) -> str:
    """A line of the table: medians, with the lowest and the highest."""
    cells = []
    for field, form in (
        ("accepted", "{:.0f}"),
        ("delivered", "{:.0f}"),
        ("p50", "{:.1f}"),
        ("p99", "{:.1f}"),
        ("python", "{:.2f}"),
        ("postgres", "{:.2f}"),
    ):
        values = [getattr(figures, field) for figures in rounds]
        cells.append(f"{form.format(statistics.median(values))} ({form.format(min(values))}–{form.format(max(values))})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    options.add_argument("--rounds", type=int, default=3, help="rounds of each way (1–20)")
    options.add_argument("--size", type=int, default=4096, help="octets of an email, about")
    chosen = options.parse_args()
    rounds = min(20, max(1, chosen.rounds))
    with tempfile.TemporaryDirectory() as name, sink() as (port, control):
        folder = Path(name)
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "postgres")
        dsn = postgres.start_blocking()
        assert postgres.pid is not None
        daemon = Daemon(folder, dsn, {"delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}}})
        try:
            daemon.start()
            results: dict[str, list[Figures]] = {way.name: [] for way in WAYS}
            first = 0
            for number in range(rounds + 1):
                for way in WAYS:
                    emails = way.emails if number else way.emails // 6  # round 0 warms up
                    figures = measure(attrs.evolve(way, emails=emails), daemon, postgres.pid, control, chosen.size, first)
                    first += emails
                    if number:
                        results[way.name].append(figures)
            print(
                f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
                f"{rounds} rounds, {chosen.size} octets an email"
            )
            print("| way | accepted/s | delivered/s | p50 ms | p99 ms | Python CPU ms/email | Postgres CPU ms/email |")
            print("|---|---|---|---|---|---|---|")
            for way in WAYS:
                print(row(way.name, results[way.name]), flush=True)
        finally:
            if daemon.process is not None:
                daemon.stop()
            postgres.stop_blocking()


if __name__ == "__main__":
    sys.exit(main())
