"""How the work of a function grows with its input, measured as CPU time of this process so that a busy machine matters little."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

STEP = 4  # each size is so many times the one before
SLACK = 5  # times as long as linear growth allows: a busy machine shares its caches
LEAST = 0.002  # seconds; what takes less is noise


def seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The fastest of a few runs."""
    return min(_once(work) for _ in range(times))


def _once(work: Callable[[], Any]) -> float:
    begin = process_time()
    work()
    return process_time() - begin


def assert_linear(make: Callable[[int], Any], work: Callable[[Any], Any], size: int) -> None:
    """`work(make(size))` takes no longer, at four and sixteen times the size, than linear growth and some slack allow."""
    gc.disable()
    try:
        inputs = [make(size * STEP**power) for power in range(3)]
        first = max(seconds(lambda: work(inputs[0])), LEAST)
        for power, value in enumerate(inputs[1:], 1):
            allowed = first * STEP**power * SLACK
            taken = seconds(lambda value=value: work(value), times=1)  # type: ignore[misc]
            if taken > allowed:  # once more: it may have been bad luck
                taken = seconds(lambda value=value: work(value))  # type: ignore[misc]
            assert taken <= allowed, f"size × {STEP**power}: {taken:.4f} s, for size {size} it was {first:.4f} s"
    finally:
        gc.enable()
