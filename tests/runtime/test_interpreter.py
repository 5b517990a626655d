"""Garbage that a failure keeps is looked for when the process has grown."""

from __future__ import annotations

import gc
import weakref

from twisted.internet.defer import Deferred

from mailsvc.runtime.interpreter import GROWN, Collecting, resident


class Frame:
    def __init__(self) -> None:
        self.cycle = self


def test_garbage_is_looked_for_when_the_process_has_grown() -> None:
    gc.collect()
    gc.disable()
    try:
        sizes = iter([100, 100 + GROWN, 100 + GROWN + 1, 90, 150])
        collecting = Collecting(lambda: next(sizes))
        seen = weakref.ref(Frame())
        for alive in (True, True, False):
            Deferred.fromCoroutine(collecting.look())
            assert (seen() is not None) == alive
        seen = weakref.ref(Frame())
        Deferred.fromCoroutine(collecting.look())
        assert seen() is not None
    finally:
        gc.enable()
    assert resident() > 1 << 20
