"""Checks that a function takes linear time. Measures CPU time, so that other processes matter little."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

STEP = 4  # the factor between sizes
SLACK = 5  # the factor by which linear growth may be exceeded: other processes use the caches
LEAST = 0.002  # seconds; less is noise


def seconds(work: Callable[[], Any], times: int = 3) -> float:
    """Returns the fastest of several runs."""
    return min(_once(work) for _ in range(times))


def _once(work: Callable[[], Any]) -> float:
    begin = process_time()
    work()
    return process_time() - begin


def assert_linear(make: Callable[[int], Any], work: Callable[[Any], Any], size: int) -> None:
    """Asserts that `work(make(size))` grows at most linearly, with some slack, at four and sixteen times the size."""
    gc.disable()
    try:
        inputs = [make(size * STEP**power) for power in range(3)]
        first = max(seconds(lambda: work(inputs[0])), LEAST)
        for power, value in enumerate(inputs[1:], 1):
            allowed = first * STEP**power * SLACK
            taken = seconds(lambda value=value: work(value), times=1)  # type: ignore[misc]
            if taken > allowed:  # measure again, in case of a disturbance
                taken = seconds(lambda value=value: work(value))  # type: ignore[misc]
            assert taken <= allowed, f"size × {STEP**power}: {taken:.4f} s, for size {size} it was {first:.4f} s"
    finally:
        gc.enable()
