"""`python -m tests.bench.instructions`: how many instructions one process runs in user space for each email, counted by callgrind.

Counts differ by a few percent between runs, and by much more if other programs run: the slower a run, the fewer emails share a commit.
Compare releases in turn. Postgres and the kernel are left out, and callgrind's processor has no AVX-512. Needs valgrind.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

from tests.bench import machine
from tests.bench.__main__ import WAYS, Bench, Way
from tests.bench.product import Product
from tests.end_to_end.shared_sockets import Shared

START = 400  # seconds until a daemon that callgrind runs has to be ready
USUAL = "SMTP, 10 reused, 4 KB|SMTP, 50 reused, 4 KB|POST /emails, 32"


class Counted(Shared):
    """A daemon that callgrind runs. Counting is switched on and off."""

    def start(self, seconds: float = START) -> None:
        super().start(seconds)

    def _command(self) -> list[str]:
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.folder / 'callgrind'}"]
        valgrind = shutil.which("valgrind")
        assert valgrind is not None, "valgrind is not installed"
        return [valgrind, *options, str(self.python), *super()._command()]

    def callgrind(self, *options: str) -> None:
        assert self.process is not None
        subprocess.run(["callgrind_control", *options, str(self.process.pid)], check=True, capture_output=True)

    def counted(self) -> int:
        """The instructions since the last call."""
        self.callgrind("-d")
        newest = max(self.folder.glob("callgrind.*"), key=lambda file: file.stat().st_mtime_ns)
        [total] = [line for line in newest.read_text(errors="replace").splitlines() if line.startswith("totals:")]
        return int(total.split()[1])


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__)
    options.add_argument("--ways", default=USUAL, help="those whose name begins with this text; several by |")
    options.add_argument("--emails", type=int, default=600, help="of each way (100–10,000)")
    chosen = options.parse_args()
    emails = min(10_000, max(100, chosen.emails))
    names = chosen.ways.split("|")
    ways = [way for way in WAYS if any(way.name.startswith(name) for name in names) and not (way.near or way.whole)]
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        machine.build(folder)
        with machine.sink(folder) as sink:
            bench = Bench(folder, sink, 1.0)
            product = Product(folder / "product", sink.port, make=Counted)
            product.folder.mkdir()
            product.start()
            try:
                for way in ways:
                    each = count(bench, product, attrs.evolve(way, emails=emails))
                    print(f"{way.name}: {each:,.0f} instructions for each email", flush=True)
            finally:
                product.stop()


def count(bench: Bench, product: Product, way: Way) -> float:
    """After as many emails that are not counted."""
    [daemon] = product.daemons
    assert isinstance(daemon, Counted)
    send(bench, product, way)
    daemon.callgrind("-i", "on")
    daemon.callgrind("-z")
    send(bench, product, way)
    daemon.callgrind("-i", "off")
    return daemon.counted() / way.emails


def send(bench: Bench, product: Product, way: Way) -> None:
    if way.per_call:
        bench.http(way, product, product.pids)
    else:
        bench.smtp(way, product.relay, product.sender, product.login if way.login else (), product.pids)


if __name__ == "__main__":
    sys.exit(main())
