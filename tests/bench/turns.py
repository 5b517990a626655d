"""twistd with a watch on the reactor: how long its turns take, each from an answer of the poller to the next question.

`python -m tests.bench.turns FILE …` with twistd's own arguments behind the file. SIGUSR1 writes the figures there and starts again.
With them goes what the longest turns were made of: a thread looks at the reactor's stack every few milliseconds of a long turn, and
the collector says how long it took.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
from twisted.scripts import twistd

from tests.end_to_end.shared_sockets import Shared

LONG = 0.01  # seconds
LOOK_EVERY = 0.004
MEASURES = ("wall", "held", "cpu")
KEPT = 4  # of the longest turns, by each measure, what they were made of
PLUMBING = ("/twisted/internet/defer", "/twisted/internet/posixbase", "/twisted/python/", "/klein/", "/twisted/scripts/", "/detach.py")
DEEP = 9  # frames of a stack that are shown


@attrs.define(eq=False)
class Turn:
    """One turn: how many descriptors were ready, what was seen of it, and the collections in it (generation, milliseconds).

    `held` is its time without that in which the machine had no processor for it: CPU, and waiting for other threads or the disk.
    """

    wall: float = 0.0
    cpu: float = 0.0
    held: float = 0.0
    ready: int = 0
    system: float = 0.0  # the part of the CPU that the kernel had
    worst: tuple[float, str] = (0.0, "")  # the most CPU that one descriptor took, and whose it was
    seen: Counter[str] = attrs.field(factory=Counter)
    collected: list[tuple[int, float]] = attrs.field(factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "wall_ms": round(self.wall * 1000, 1),
            "cpu_ms": round(self.cpu * 1000, 1),
            "held_ms": round(self.held * 1000, 1),
            "system_ms": round(self.system * 1000, 1),
            "worst": f"{self.worst[0] * 1000:.1f} {self.worst[1]}",
            "ready": self.ready,
            "collected": self.collected,
            "seen": self.seen.most_common(12),
        }


@attrs.define(eq=False)
class Watch:
    """Replaces the reactor's poller. Measures the CPU of the reactor's thread, which other processes hardly affect."""

    poller: Any
    turns: int = 0
    long: int = 0
    longest: Turn = attrs.field(factory=Turn)  # of each measure separately
    turn: Turn | None = None
    kept: list[Turn] = attrs.field(factory=list)
    collections: list[list[float]] = attrs.field(factory=lambda: [[0, 0.0, 0.0] for _ in range(3)])  # number, seconds, longest
    _since: Sequence[float] = (0.0, 0.0, 0.0)
    _system: float = 0.0
    _collecting: float = 0.0
    _schedule: int = attrs.field(factory=lambda: os.open("/proc/thread-self/schedstat", os.O_RDONLY))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.poller, name)

    def poll(self, *arguments: Any) -> Any:
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.wall, turn.cpu, queued = (now - then for now, then in zip(self._clocks(), self._since, strict=True))
            turn.system = resource.getrusage(resource.RUSAGE_THREAD).ru_stime - self._system
            turn.held = max(turn.cpu, turn.wall - queued)
            self.turns += 1
            self.long += turn.wall >= LONG
            for measure in MEASURES:
                setattr(self.longest, measure, max(getattr(self.longest, measure), getattr(turn, measure)))
            if turn.wall >= LONG:
                self._keep(turn)
        found = self.poller.poll(*arguments)
        self._since = self._clocks()
        self._system = resource.getrusage(resource.RUSAGE_THREAD).ru_stime
        self.turn = Turn(ready=len(found))
        return found

    def around(self, work: Callable[..., None]) -> Callable[..., None]:
        """Replaces the reactor's handler for one descriptor."""

        def done(selectable: Any, *arguments: Any) -> None:
            before = time.thread_time()
            try:
                work(selectable, *arguments)
            finally:
                spent, turn = time.thread_time() - before, self.turn
                if turn is not None and spent > turn.worst[0]:
                    protocol = getattr(selectable, "protocol", selectable)
                    turn.worst = spent, type(getattr(protocol, "wrappedProtocol", protocol)).__name__

        return done

    def _clocks(self) -> Sequence[float]:
        """Returns wall time, this thread's CPU time, and its time waiting for a CPU."""
        return time.monotonic(), time.thread_time(), int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9

    def _keep(self, turn: Turn) -> None:
        turns = [*self.kept, turn]
        self.kept = []
        for measure in MEASURES:
            longest = sorted(turns, key=lambda each: -getattr(each, measure))[:KEPT]
            self.kept += [each for each in longest if each not in self.kept]

    def look(self, thread: int) -> None:
        """Runs in a separate thread: samples what the reactor does in long turns."""
        while True:
            time.sleep(LOOK_EVERY)
            turn = self.turn
            if turn is not None and time.monotonic() - self._since[0] >= LOOK_EVERY:
                turn.seen[_stack(sys._current_frames().get(thread))] += 1

    def collection(self, phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.monotonic()
            return
        generation, seconds = facts["generation"], time.monotonic() - self._collecting
        number, total, longest = self.collections[generation]
        self.collections[generation] = [number + 1, total + seconds, max(longest, seconds)]
        if self.turn is not None:
            self.turn.collected.append((generation, round(seconds * 1000, 1)))

    def as_dict(self) -> dict[str, Any]:
        figures = {
            "turns": self.turns,
            "long": self.long,
            "longest": self.longest.as_dict(),
            "made_of": [turn.as_dict() for turn in self.kept],
            "collections": self.collections,
        }
        self.collections = [[0, 0.0, 0.0] for _ in range(3)]
        self.turns = self.long = 0
        self.longest, self.kept = Turn(), []
        return figures


def _stack(frame: FrameType | None) -> str:
    """The innermost frames first, without Twisted's internals."""
    frames: list[str] = []
    while frame is not None and len(frames) < DEEP:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not any(plumbing in file for plumbing in PLUMBING):
            frames.append(f"{Path(file).parent.name}/{Path(file).stem}.{name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(frames)


class Watched(Shared):
    """A daemon whose reactor is measured."""

    @property
    def figures(self) -> Path:
        return self.folder / "turns.json"

    def _command(self) -> list[str]:
        _, *arguments = super()._command()
        return [str(self.python), "-m", "tests.bench.turns", str(self.figures), *arguments]

    def figures_since(self) -> dict[str, Any]:
        """Returns the figures since the last call."""
        assert self.process is not None
        self.figures.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while not self.figures.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(self.figures.read_text())
        return found


def main() -> None:
    file = Path(sys.argv[1])
    from twisted.internet import reactor

    watch = Watch(reactor._poller)  # type: ignore[attr-defined]
    reactor._poller = watch  # type: ignore[attr-defined]
    reactor._doReadOrWrite = watch.around(reactor._doReadOrWrite)  # type: ignore[attr-defined]
    threading.Thread(target=watch.look, args=(threading.get_ident(),), daemon=True).start()
    gc.callbacks.append(watch.collection)

    def tell(*_: object) -> None:
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(watch.as_dict()))
        temporary.rename(file)

    signal.signal(signal.SIGUSR1, tell)
    sys.argv = ["twistd", *sys.argv[2:]]
    twistd.run()


if __name__ == "__main__":
    main()
