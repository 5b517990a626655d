"""Garbage that a Failure keeps alive is collected when the process has grown."""

from __future__ import annotations

import gc
import weakref

from twisted.internet.defer import Deferred

from mailsvc.runtime.interpreter import GROWTH, GrowthCollector, resident_bytes


class Frame:
    def __init__(self) -> None:
        self.cycle = self


def test_garbage_is_collected_when_the_process_has_grown() -> None:
    gc.collect()
    gc.disable()
    try:
        sizes = iter([100, 100 + GROWTH, 100 + GROWTH + 1, 90, 150])
        collector = GrowthCollector(lambda: next(sizes))
        seen = weakref.ref(Frame())
        for alive in (True, True, False):
            Deferred.fromCoroutine(collector.collect_if_grown())
            assert (seen() is not None) == alive
        seen = weakref.ref(Frame())
        Deferred.fromCoroutine(collector.collect_if_grown())
        assert seen() is not None
    finally:
        gc.enable()
    assert resident_bytes() > 1 << 20
