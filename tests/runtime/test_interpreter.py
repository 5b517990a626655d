"""Garbage that a Failure keeps alive is collected when the process has grown, and a daemon may open as many files as allowed."""

from __future__ import annotations

import gc
import resource
import sys
import weakref
from unittest.mock import Mock

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, globalLogPublisher
from twisted.python import log

from mailsvc.runtime.interpreter import GROWTH, GrowthCollector, resident_bytes, tune, without_log_context


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


def test_a_daemon_may_open_as_many_files_as_the_hard_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((gc, "freeze"), (gc, "set_threshold"), (sys, "setswitchinterval"), (log, "callWithLogger")):
        monkeypatch.setattr(module, name, Mock())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        tune(Mock())
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_an_event_of_a_socket_raises_is_logged() -> None:
    logged: list[LogEvent] = []
    globalLogPublisher.addObserver(logged.append)
    try:
        assert without_log_context(None, divmod, 7, 2) == (3, 1)
        assert not logged
        assert without_log_context(None, divmod, 7, 0) is None
    finally:
        globalLogPublisher.removeObserver(logged.append)
    [event] = logged
    assert event["failure"].check(ZeroDivisionError)


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        without_log_context(None, Mock(side_effect=KeyboardInterrupt))
