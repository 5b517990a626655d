"""Tuning the process for a daemon: garbage collection, thread switching, log contexts, memory, and how many files it may open."""

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
from twisted.python import log

THREADS = 10  # of the reactor's pool, all started at once: starting one blocks the caller until it runs
# Nearly everything is freed by reference counting. By default the collector runs every 700 objects; running it less often makes each
# run longer, and lets tracebacks keep the bodies of failed requests alive longer.
GARBAGE_THRESHOLDS = 5_000, 5, 20
# Seconds that a busy thread keeps the interpreter lock. The reactor releases it with every system call, dozens of times per turn, and has
# to wait for it each time while a thread parses 40 MB.
SWITCH_INTERVAL = 0.0005
GROWTH = 16 * 1024 * 1024  # bytes the process must grow by before an extra collection
# mallopt of glibc. Blocks from this size on are mapped individually and returned to the system when freed. By default the threshold grows
# to 32 MB with the first large block that is freed, and the memory of a large mail stays with the thread that parsed it. Pieces of messages
# are smaller: mapping 512 KiB for each costs 128 page faults.
MMAP_THRESHOLD, MMAP_FROM = -3, 1024 * 1024
TRIM_THRESHOLD, TRIM_FROM = -1, 4 * 1024 * 1024  # what a heap may have free at its end: a few pieces
ARENA_MAX, ARENAS = -8, 2  # heaps shared by all threads, so that one can reuse what another has freed


def tune(reactor: Any) -> None:
    """Call this once everything that lives as long as the process has been created."""
    raise_open_files()
    reactor.getThreadPool().adjustPoolsize(THREADS, THREADS)
    gc.collect()
    gc.freeze()  # spares the collector what stays anyway: scanning it took 50 ms each time
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)
    log.callWithLogger = without_log_context  # the reactor calls it for each event of a socket


def without_log_context(logger: Any, func: Any, *args: Any, **kw: Any) -> Any:
    """Calls `func` and logs what it raises, like `log.callWithLogger`, but without a log context that names the source of the event.

    Our logs do not show that name, and the context costs 14,000 instructions for each event: six events, 2 % of an email.
    """
    try:
        return func(*args, **kw)
    except KeyboardInterrupt:
        raise
    except BaseException:
        log.err()
        return None


@attrs.define
class GrowthCollector:
    """Collects garbage when the process has grown.

    A Failure keeps its frames alive, and they keep the message being processed. A few large ones are only some hundred objects, which
    would not trigger the collector for a long time.
    """

    resident_bytes: Callable[[], int]
    _lowest: int = sys.maxsize  # bytes, since the last collection

    async def collect_if_grown(self) -> None:
        now = self.resident_bytes()
        if now > self._lowest + GROWTH:
            gc.collect()
            self._lowest = self.resident_bytes()
        else:
            self._lowest = min(self._lowest, now)


def resident_bytes() -> int:
    """The resident memory of this process; 0 where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def raise_open_files() -> None:
    """Open as many files as the hard limit allows: a shell's soft limit of 1024 is fewer than the connections in the settings."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # for example where a hard limit without end is more than the system allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def return_memory() -> None:
    """Make malloc return freed memory to the system. Call it before there are threads; without glibc it does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, MMAP_FROM)
        mallopt(TRIM_THRESHOLD, TRIM_FROM)
        mallopt(ARENA_MAX, ARENAS)
