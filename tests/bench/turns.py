"""twistd with a watch on the reactor: how long its turns take, each from an answer of the poller to the next question.

`python -m tests.bench.turns FILE …` with twistd's own arguments behind the file. SIGUSR1 has the figures written there and begins anew.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import attrs
from twisted.scripts import twistd

from tests.whole import rig

LONG = 0.01  # seconds


@attrs.define(eq=False)
class Watch:
    """In the place of the reactor's poller. CPU is that of the reactor's thread, which others on the machine lengthen little."""

    poller: Any
    turns: int = 0
    long: int = 0
    longest: float = 0.0
    longest_cpu: float = 0.0
    _since: tuple[float, float] = (0.0, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.poller, name)

    def poll(self, *arguments: Any) -> Any:
        wall, cpu = time.monotonic() - self._since[0], time.thread_time() - self._since[1]
        if self._since[0]:
            self.turns += 1
            self.long += wall >= LONG
            self.longest, self.longest_cpu = max(self.longest, wall), max(self.longest_cpu, cpu)
        found = self.poller.poll(*arguments)
        self._since = time.monotonic(), time.thread_time()
        return found

    def told(self) -> dict[str, float]:
        figures = {"turns": self.turns, "long": self.long, "longest_ms": self.longest * 1000, "longest_cpu_ms": self.longest_cpu * 1000}
        self.turns = self.long = 0
        self.longest = self.longest_cpu = 0.0
        return figures


class Watched(rig.Daemon):
    """A daemon whose reactor is watched."""

    @property
    def figures(self) -> Path:
        return self.folder / "turns.json"

    def _command(self) -> list[str]:
        _, *arguments = super()._command()
        return [str(self.python), "-m", "tests.bench.turns", str(self.figures), *arguments]

    def ask(self) -> dict[str, float]:
        """The figures since it was last asked."""
        assert self.process is not None
        self.figures.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while not self.figures.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found: dict[str, float] = json.loads(self.figures.read_text())
        return found


def main() -> None:
    file = Path(sys.argv[1])
    from twisted.internet import reactor

    watch = Watch(reactor._poller)  # type: ignore[attr-defined]
    reactor._poller = watch  # type: ignore[attr-defined]

    def tell(*_: object) -> None:
        made = file.with_suffix(".new")
        made.write_text(json.dumps(watch.told()))
        made.rename(file)

    signal.signal(signal.SIGUSR1, tell)
    sys.argv = ["twistd", *sys.argv[2:]]
    twistd.run()


if __name__ == "__main__":
    main()
