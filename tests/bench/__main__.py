"""`make bench`: mailsvc beside Postfix with OpenDKIM, the same mails in the same round, and what each costs.

Everything on loopback, with loads (SMTP in C, HTTP in Python) and a sink in C that are not the bottleneck; bounded in number, so that a
run ends. Each way in is measured at all of them, one right after the other, because a machine's speed changes. The table has the medians
of the ratios, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.bench import load, machine, mails, peer
from tests.bench.machine import Sink
from tests.bench.peer import Peer
from tests.bench.product import EQUAL, SPLIT, Product


@attrs.frozen
class Way:
    """One way in. `sessions` connections, each for one mail when `reconnect`; by HTTP, `per_call` emails in a request.

    With a `rate` the mails come at so many a second, whatever becomes of them, with `near` at that part of the peer's full rate over 10
    connections. `to` has a %d for a number below 1,000. `whole`: the number of emails does not depend on the share of the run.
    """

    name: str
    sessions: int
    size: int = 4096
    login: bool = False  # with STARTTLS and AUTH; else in clear, as the server trusts this machine
    reconnect: bool = False
    per_call: int = 0
    alike: bool = True  # by HTTP: all emails have the same HTML
    emails: int = 2000
    rate: float = 0.0
    to: str = ""
    near: float = 0.0
    whole: bool = False

    @property
    def compared(self) -> Way:
        """What the peer is measured with instead."""
        return SMTP_50 if self.per_call or self.to else self


SMTP_10, SMTP_50 = Way("SMTP, 10 reused, 4 KB", 10), Way("SMTP, 50 reused, 4 KB", 50)
WAYS = (
    SMTP_10,
    SMTP_50,
    Way("SMTP, 10 reused, 4 KB, 90 % of the peer's rate", 10, emails=4000, near=0.9),
    Way("SMTP, 50 reused, 4 KB, a burst of 5,000", 50, emails=5000, whole=True),
    Way("SMTP, 10 reused, 50 KB", 10, 51200, emails=1000),
    Way("SMTP, STARTTLS and AUTH, 10 reused, 4 KB", 10, login=True),
    Way("SMTP, STARTTLS and AUTH each time, 10 at a time, 4 KB", 10, login=True, reconnect=True, emails=1000),
    Way("SMTP, STARTTLS and AUTH, 2 reused, 40 MB", 2, 40_000_000, login=True, emails=12),
    Way("POST /emails/batch, 100 a call, 4 clients, 4 KB", 4, per_call=100, emails=4000),
    Way("POST /emails, 32 connections, 4 KB", 32, per_call=1),
    Way("POST /emails, 32 connections, 4 KB, a page for each", 32, per_call=1, alike=False),
    Way("SMTP, 50 reused, 4 KB, 1,000 destinations", 50, to="customer@d%d.test"),
    Way("SMTP, STARTTLS and AUTH, 10 reused, 4 KB, 50 a second", 10, login=True, rate=50.0, emails=500),
)
KINDS: dict[str, Callable[[Path, Sink], Product]] = {
    "one": lambda folder, sink: Product(folder, sink.port),
    "two": lambda folder, sink: Product(folder, sink.port, SPLIT),
    "bound": lambda folder, sink: Product(folder, sink.port, SPLIT, bound=True),
    "equal": lambda folder, sink: Product(folder, sink.port, EQUAL),
    "dual": lambda folder, sink: Product(folder, sink.port, dual=True),
    "encrypted": lambda folder, sink: Product(folder, sink.port, encrypted=True),
}
TITLES = {
    "peer": "Postfix + OpenDKIM",
    "one": "mailsvc, one process",
    "two": "mailsvc, two processes",
    "bound": "mailsvc, two processes, each bound to a core",
    "equal": "mailsvc, two equal processes",
    "dual": "one process, signing twice",
    "encrypted": "one process, messages encrypted",
}


@attrs.frozen
class Figures:
    """The result of one round: emails per second from the first to the last arrival, times and CPU in milliseconds."""

    rate: float
    p50: float
    p99: float
    cpu: float
    spent: tuple[float, ...]  # the same CPU, by root process
    accepted: float = 0.0  # MB a second, from the first octet to the last reply


Run = Callable[[Way], Figures]


@attrs.define
class Bench:
    """One run: its folder, its sink, and the fraction of emails that it sends. `full_rate`: the peer's, over 10 connections."""

    folder: Path
    sink: Sink
    share: float
    full_rate: float = 0.0

    def smtp(self, way: Way, port: int, sender: str, login: Sequence[str], roots: Sequence[int]) -> Figures:
        count = way.emails if way.whole else max(min(100, way.emails), int(way.emails * self.share))
        rate = way.rate or way.near * self.full_rate
        file = self.folder / "mail.eml"
        file.write_bytes(mails.mail(sender, way.size))
        command = [
            self.folder / "smtpload",
            "-p",
            port,
            "-s",
            way.sessions,
            "-m",
            count,
            "-k",
            int(way.reconnect),
            "-F",
            file,
            "-f",
            sender,
            *login,
            *(("-r", rate) if rate else ()),
            *(("-t", way.to) if way.to else ()),
        ]
        result: dict[str, Any] = {}

        def go() -> int:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            result.update(json.loads(done.stdout))
            assert not result["errors"], result["first_error"]
            return int(result["start_ns"])

        figures = self._measured(count, roots, go)
        return attrs.evolve(figures, accepted=result["bytes"] * result["sent"] / result["wall_s"] / 1e6)

    def http(self, way: Way, product: Product, roots: Sequence[int]) -> Figures:
        count = max(4 * way.per_call, int(way.emails * self.share))
        key = str(product.first.facts["api_key"])

        def go() -> int:
            return load.run(
                product.first.port,
                key,
                product.sender,
                emails=count,
                per_call=way.per_call,
                connections=way.sessions,
                size=way.size,
                first=0,
                alike=way.alike,
            ).started_ns

        return self._measured(count, roots, go)

    def _measured(self, count: int, roots: Sequence[int], go: Callable[[], int]) -> Figures:
        self.sink.command("reset")
        before = [machine.cpu((root,)) for root in roots]
        started = go()
        stats = self.sink.until(count)
        time.sleep(0.5)  # what follows a delivery (settling, numbering) is part of its cost
        spent = tuple((machine.cpu((root,)) - earlier) * 1000 / count for root, earlier in zip(roots, before, strict=True))
        span = (int(str(stats["last_ns"])) - started) / 1e9
        times = stats["e2e_ms"]
        assert isinstance(times, dict)
        return Figures(count / span, float(times["p50"]), float(times["p99"]), sum(spent), spent)

    def round(self, kinds: Sequence[str], ways: Sequence[Way], *, backwards: bool) -> dict[str, dict[Way, Figures]]:
        """The figures of each kind, all of which run throughout. `backwards`: each way is measured at the last kind first."""
        found: dict[str, dict[Way, Figures]] = {kind: {} for kind in kinds}
        with ExitStack() as running:
            runs = [(kind, running.enter_context(self._peer() if kind == "peer" else self._product(kind))) for kind in kinds]
            for _, run in runs:
                run(Way("warming up", 50, emails=int(300 / self.share)))
            for way in ways:
                for kind, run in reversed(runs) if backwards else runs:
                    if kind != "dual" or way is SMTP_50:
                        found[kind][way] = run(way)
                if way is SMTP_10 and "peer" in found:
                    self.full_rate = found["peer"][way].rate
        return found

    @contextmanager
    def _peer(self) -> Iterator[Run]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            postfix = Peer(Path(name), self.sink.port)
            postfix.configure()
            postfix.start()
            login = ("-u", peer.USER, "-w", peer.PASSWORD, "-S")

            def run(way: Way) -> Figures:
                given = login if way.login else ()
                return self.smtp(way.compared, postfix.login if way.login else postfix.clear, peer.SENDER, given, postfix.pids)

            try:
                yield run
            finally:
                postfix.stop()

    @contextmanager
    def _product(self, kind: str) -> Iterator[Run]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            product = KINDS[kind](Path(name), self.sink)
            product.start()

            def run(way: Way) -> Figures:
                if way.per_call:
                    return self.http(way, product, product.pids)
                return self.smtp(way, product.relay, product.sender, product.login if way.login else (), product.pids)

            try:
                yield run
            finally:
                product.stop()


def spread(values: Sequence[float], form: str) -> str:
    """Formats the median, the lowest and the highest."""
    if max(values) < 10:
        form = "{:.2f}"
    middle, low, high = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def table(way: Way, rounds: Sequence[dict[str, dict[Way, Figures]]], kinds: Sequence[str]) -> list[str]:
    """Formats Markdown rows: one for each kind, with its ratios to the peer in the same round."""
    lines = [
        f"\n{way.name}\n",
        "| | mails/s | ratio | CPU ms/mail | ratio | of which | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    accepted: list[str] = []
    for kind in kinds:
        found = [each[kind][way] for each in rounds if way in each[kind]]
        if not found:
            continue
        against = [each["peer"][way] for each in rounds] if "peer" in kinds else found
        parts = " + ".join(f"{statistics.median(values):.2f}" for values in zip(*(each.spent for each in found), strict=True))
        cells = [
            spread([each.rate for each in found], "{:.0f}"),
            spread([each.rate / other.rate for each, other in zip(found, against, strict=True)], "{:.2f}"),
            spread([each.cpu for each in found], "{:.2f}"),
            spread([each.cpu / other.cpu for each, other in zip(found, against, strict=True)], "{:.2f}"),
            parts,
            spread([each.p50 for each in found], "{:.0f}"),
            spread([each.p99 for each in found], "{:.0f}"),
        ]
        lines.append(f"| {TITLES[kind]} | {' | '.join(cells)} |")
        if way.size > 1_000_000:
            accepted.append(f"{TITLES[kind]}: {spread([each.accepted for each in found], '{:.0f}')} MB/s accepted")
    return [*lines, "", "; ".join(accepted)] if accepted else lines


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    options.add_argument("--rounds", type=int, default=3, help="interleaved rounds (1–20)")
    options.add_argument("--share", type=float, default=1.0, help="of the mails of each way (0.05–20)")
    options.add_argument("--ways", default="", help="only those whose name has this text; several by |")
    options.add_argument("--kinds", default="peer,one,two,dual", help=f"which to compare, of {', '.join(TITLES)}")
    options.add_argument("--parts", default="", help="to run afterwards: bodies,turns,memory,growth; what they show: tests.bench.shown")
    chosen = options.parse_args()
    kinds = [kind for kind in TITLES if kind in chosen.kinds.split(",")]
    ways = [way for way in WAYS if any(text in way.name for text in chosen.ways.split("|"))]
    if any(way.near for way in ways):
        if "peer" not in kinds:
            ways = [way for way in ways if not way.near]
        elif SMTP_10 not in ways:
            ways.insert(0, SMTP_10)
    if "peer" in kinds:
        peer.install()
    rounds: list[dict[str, dict[Way, Figures]]] = []
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        machine.build(folder)
        with machine.sink(folder) as sink:
            bench = Bench(folder, sink, min(20.0, max(0.05, chosen.share)))
            for number in range(min(20, max(1, chosen.rounds))):
                rounds.append(bench.round(kinds, ways, backwards=number % 2 == 1))
                print(f"round {number + 1} done", file=sys.stderr, flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {len(rounds)} rounds")
    for way in ways:
        print("\n".join(table(way, rounds, kinds)), flush=True)
    if chosen.parts:
        print(flush=True)
        subprocess.run([sys.executable, "-m", "tests.bench.shown", "--parts", chosen.parts], check=True)


if __name__ == "__main__":
    sys.exit(main())
