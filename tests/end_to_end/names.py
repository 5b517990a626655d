"""A DNS server in a process of its own: `python -m tests.end_to_end.names ZONES.json` serves what the file holds at each question.

Prints its port. Tests write the file; a change is seen at the next question.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from tests.dnsserver import DnsServer


class FromFile(dict[str, Mapping[str, list[str]]]):
    """Zones that are read again whenever the server looks a name up."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        return json.loads(self.path.read_text()).get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in json.loads(self.path.read_text())

    def __getitem__(self, name: str) -> Mapping[str, list[str]]:
        found: Mapping[str, list[str]] = json.loads(self.path.read_text())[name]
        return found


@attrs.define
class Names:
    """The server as tests hold it."""

    path: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self, zones: Mapping[str, Mapping[str, list[str]]]) -> None:
        partial = self.path.with_suffix(".new")
        partial.write_text(json.dumps(zones))
        partial.replace(self.path)

    def start(self) -> None:
        self.serve({})
        command = [sys.executable, "-m", "tests.end_to_end.names", str(self.path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(10)


async def _run(reactor: object, path: Path) -> None:
    server = DnsServer({}, ttl=1)
    server.zones = FromFile(path)
    await server.start(reactor)
    print(server.port, flush=True)
    await Deferred()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(_run(reactor, Path(sys.argv[1]))))
