"""Access to the machine: CPU of process trees, the load and sink programs in C, the sink's counts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.end_to_end.rig import free_port

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(roots: Collection[int]) -> float:
    """Returns the CPU seconds of processes and all their children, running or ended."""
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
        while above and above not in roots:
            above = parents.get(above, 0)
        total += ticks if above else 0
    return total / TICKS


def build(folder: Path) -> None:
    """Compiles the load and the sink."""
    for name in ("smtpload", "smtpsink"):
        source = HERE / f"{name}.c"
        subprocess.run(["cc", "-O2", "-o", folder / name, source, "-lssl", "-lcrypto", "-lpthread"], check=True)


@attrs.frozen
class Sink:
    """A counting SMTP server: its port, and the port that reports its counts."""

    port: int
    control: int

    def command(self, what: str) -> dict[str, object]:
        """Sends `stats` or `reset`."""
        for _ in range(50):
            try:
                link = socket.create_connection(("127.0.0.1", self.control), 5)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        with link:
            link.sendall(what.encode())
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        found = json.loads(answer)
        assert isinstance(found, dict)
        return found

    def until(self, emails: int, seconds: float = 120) -> dict[str, object]:
        """Waits until that many different emails arrived, and returns the counts."""
        deadline = time.monotonic() + seconds
        while int(str((stats := self.command("stats"))["unique"])) < emails:
            assert time.monotonic() < deadline, f"{stats['unique']} of {emails} arrived"
            time.sleep(0.05)
        return stats


@contextmanager
def sink(folder: Path) -> Iterator[Sink]:
    """Starts the sink on every address of 127.0.0.0/8, to act as many destinations."""
    running = Sink(free_port(), free_port())
    process = subprocess.Popen([folder / "smtpsink", "-A", "-p", str(running.port), "-c", str(running.control)])
    try:
        running.command("reset")
        yield running
    finally:
        process.terminate()
        process.wait(10)
