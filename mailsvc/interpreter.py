"""How Python is set for a daemon: when it looks for garbage, and how its threads take turns."""

from __future__ import annotations

import gc
import sys
from typing import Any

THREADS = 10  # of the reactor's pool, all of them from the start: whoever begins one waits until it runs
# What a daemon makes is nearly all freed without the collector. By default it would look every 700 objects; the more rarely it looks,
# the longer it takes each time, and the longer the bodies of failed requests may hang in their tracebacks.
GARBAGE = 5_000, 5, 20
# Seconds for which a busy thread keeps the others out. The reactor lets go of the interpreter with each call of the system, dozens of times
# a turn, and has to get it back each time while a thread reads 40 MB.
SWITCH = 0.0005


def settle(reactor: Any) -> None:
    """Once everything is there that stays."""
    reactor.getThreadPool().adjustPoolsize(THREADS, THREADS)
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look through it again, which took 50 ms each time
    gc.set_threshold(*GARBAGE)
    sys.setswitchinterval(SWITCH)
