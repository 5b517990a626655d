"""`make bench`: emails a second from accepted to delivered, over the API and over SMTP, and the CPU that each costs.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from mailsvc.store.embedded import EmbeddedPostgres
from tests.bench import load
from tests.whole.relay import daemon_with_relay
from tests.whole.rig import Daemon, free_port

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Sent:
    """What a load came to: emails a second that were accepted, when it began, and how long one call took."""

    rate: float
    started_ns: int
    p50: float
    p99: float


@attrs.frozen
class Way:
    """One way in. `send(daemon, emails, size, first)` makes the load; without a `size` of its own it takes the one that was asked for."""

    name: str
    emails: int
    send: Callable[[Daemon, int, int, int], Sent]
    size: int | None = None


def api(per_call: int, connections: int) -> Callable[[Daemon, int, int, int], Sent]:
    def send(daemon: Daemon, emails: int, size: int, first: int) -> Sent:
        facts = daemon.facts
        sent = load.run(
            daemon.port, str(facts["api_key"]), f"bench@{facts['domain']}",
            emails=emails, per_call=per_call, connections=connections, size=size, first=first,
        )  # fmt: skip
        return Sent(sent.rate, sent.started_ns, sent.quantile(0.5) * 1000, sent.quantile(0.99) * 1000)

    return send


def smtp(connections: int, per_connection: int) -> Callable[[Daemon, int, int, int], Sent]:
    """STARTTLS, AUTH and PIPELINING; `per_connection` 0: all mails over the same connections."""

    def send(daemon: Daemon, emails: int, size: int, first: int) -> Sent:
        facts = daemon.facts
        options = {
            "-p": facts["smtp"]["587"], "-s": connections, "-m": emails, "-o": first, "-k": per_connection, "-l": size,
            "-f": f"bench@{facts['domain']}", "-u": facts["smtp_username"], "-w": facts["api_key"],
        }  # fmt: skip
        words = [str(word) for pair in options.items() for word in pair]
        done = subprocess.run([str(daemon.folder / "smtpload"), "-P", "-S", *words], capture_output=True, text=True)
        told = json.loads(done.stdout)
        assert told["sent"] == emails, told["first_error"]
        return Sent(told["accept_rate"], told["start_ns"], told["lat_txn_ms"]["p50"], told["lat_txn_ms"]["p99"])

    return send


WAYS = (
    Way("POST /emails, 32 connections", 6000, api(1, 32)),
    Way("POST /emails/batch of 100, 4 connections", 12000, api(100, 4)),
    Way("SMTP, 10 kept connections", 6000, smtp(10, 0)),
    Way("SMTP, 10 connections, one mail each", 2000, smtp(10, 1)),
    Way("SMTP, mails of 40 MB, 2 kept connections", 12, smtp(2, 0), 40_000_000),
)


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


def build(name: str, folder: Path) -> Path:
    """One of the programs in C that stand here."""
    program = folder / name
    subprocess.run(["cc", "-O2", "-o", program, HERE / f"{name}.c", "-lssl", "-lcrypto", "-lpthread"], check=True)
    return program


@contextmanager
def sink() -> Iterator[tuple[int, int]]:
    """A counting SMTP server: its port and the port that tells its counts."""
    with tempfile.TemporaryDirectory() as folder:
        program = build("smtpsink", Path(folder))
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
    assert daemon.process is not None
    python, database = cpu(daemon.process.pid), cpu(postgres)
    sent = way.send(daemon, way.emails, way.size or size, first)
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
        p50=sent.p50,
        p99=sent.p99,
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
    options.add_argument("--only", default="", help="only the ways with this in their name")
    options.add_argument("--size", type=int, default=4096, help="octets of an email, about")
    chosen = options.parse_args()
    rounds = min(20, max(1, chosen.rounds))
    ways = [way for way in WAYS if chosen.only in way.name]
    with tempfile.TemporaryDirectory() as name, sink() as (port, control):
        folder = Path(name)
        folder.chmod(0o755)
        postgres = EmbeddedPostgres.at(folder / "postgres")
        dsn = postgres.start_blocking()
        assert postgres.pid is not None
        build("smtpload", folder)
        daemon = daemon_with_relay(folder, dsn, port)
        try:
            daemon.start()
            results: dict[str, list[Figures]] = {way.name: [] for way in ways}
            first = 0
            for number in range(rounds + 1):
                for way in ways:
                    emails = way.emails if number else max(1, way.emails // 6)  # round 0 warms up
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
            for way in ways:
                print(row(way.name, results[way.name]), flush=True)
        finally:
            if daemon.process is not None:
                daemon.stop()
            postgres.stop_blocking()


if __name__ == "__main__":
    sys.exit(main())
