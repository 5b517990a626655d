"""How Python is set for a daemon: when it looks for garbage, and how its threads take turns."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

THREADS = 10  # of the reactor's pool, all of them from the start: whoever begins one waits until it runs
# What a daemon makes is nearly all freed without the collector. By default it would look every 700 objects; the more rarely it looks,
# the longer it takes each time, and the longer the bodies of failed requests may hang in their tracebacks.
GARBAGE = 5_000, 5, 20
# Seconds for which a busy thread keeps the others out. The reactor lets go of the interpreter with each call of the system, dozens of times
# a turn, and has to get it back each time while a thread reads 40 MB.
SWITCH = 0.0005
GROWN = 16 * 1024 * 1024  # bytes by which the process has to grow before garbage is looked for out of turn
# Of glibc (mallopt): from this size on a block is a mapping of its own, which goes back to the system as soon as it is freed. By default
# the size grows to 32 MB with the first large block that is freed, and the memory of a large mail stays with the thread that read it.
MMAP_THRESHOLD, OWN_MAPPING = -3, 128 * 1024
ARENA_MAX, ARENAS = -8, 2  # heaps that all threads share: what one of them frees, the others use


def settle(reactor: Any) -> None:
    """Once everything is there that stays."""
    reactor.getThreadPool().adjustPoolsize(THREADS, THREADS)
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look through it again, which took 50 ms each time
    gc.set_threshold(*GARBAGE)
    sys.setswitchinterval(SWITCH)


@attrs.define
class Collecting:
    """Looks for garbage when the process has grown. A failure keeps its frames, and those the message that it was about; a few large ones
    are only some hundred objects, for which the collector alone would not look for a long time.
    """

    resident: Callable[[], int]
    _lowest: int = sys.maxsize  # bytes, since the last look

    async def look(self) -> None:
        now = self.resident()
        if now > self._lowest + GROWN:
            gc.collect()
            self._lowest = self.resident()
        else:
            self._lowest = min(self._lowest, now)


def resident() -> int:
    """Bytes of memory that this process uses; 0 where nobody tells."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def return_memory() -> None:
    """Freed blocks go back to the system. At the very start, before there are threads; elsewhere than with glibc nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, OWN_MAPPING)
        mallopt(ARENA_MAX, ARENAS)
