"""How many of the machine's cores have nothing to do. Linux; elsewhere none is known to be idle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import attrs

EVERY = 0.25  # seconds between two measurements
_STAT = Path("/proc/stat")


@attrs.define(eq=False)
class IdleCores:
    """Call it for the average between the last two measurements. `seconds`: for how long cores have been idle, all together."""

    now: Callable[[], float] = monotonic
    seconds: Callable[[], float] = lambda: idle_seconds(_STAT)
    _measured: tuple[float, float] | None = attrs.field(default=None, init=False)
    _cores: float = attrs.field(default=0.0, init=False)

    def __call__(self) -> float:
        now = self.now()
        if self._measured is None:
            self._measured = now, self.seconds()
        elif (passed := now - self._measured[0]) >= EVERY:
            idle = self.seconds()
            self._cores, self._measured = (idle - self._measured[1]) / passed, (now, idle)
        return self._cores


def idle_seconds(stat: Path) -> float:
    """From the line of all cores: idle and iowait, in ticks (proc_stat(5))."""
    try:
        with stat.open() as file:
            fields = file.readline().split()
    except OSError:
        return 0.0
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
