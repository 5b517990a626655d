"""Starting in order, stopping in reverse, and reporting a start that fails."""

from __future__ import annotations

import io
import os
import signal

import pytest
from twisted.application.service import Application, IService
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, capturedLogs

from mailsvc.runtime import lifecycle
from mailsvc.runtime.lifecycle import Lifespan, Opened


class Reactor:
    """Calls immediately what should be called once it runs."""

    def __init__(self):
        self.stopped = 0

    def callWhenRunning(self, call):
        call()

    def callFromThread(self, call, *arguments):
        call(*arguments)

    def stop(self):
        self.stopped += 1


@pytest.fixture
def status(monkeypatch):
    """The exit status, and what is printed."""
    statuses, out = [], io.StringIO()
    monkeypatch.setattr(lifecycle, "exit_with", statuses.append)
    monkeypatch.setattr(lifecycle.sys, "__stderr__", out)
    return statuses, out


def closer(trace, name):
    async def close():
        trace.append(name)

    return close


def test_parts_are_stopped_in_reverse_order():
    trace = []

    async def start(opened):
        for name in ("memory", "delivery", "listeners"):
            opened.add(name, closer(trace, name))

    service = Lifespan(Reactor(), start, str)
    service.startService()
    service.stopService()
    assert trace == ["listeners", "delivery", "memory"]


@pytest.mark.parametrize("terminal", [True, False])
def test_sighup_stops_the_daemon_only_if_its_terminal_was_closed(monkeypatch, terminal):
    handlers, reactor = {}, Reactor()
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)

    async def start(opened):
        pass

    Lifespan(reactor, start, str, signals=True).startService()
    with capturedLogs() as logged:
        handlers[signal.SIGHUP](signal.SIGHUP, None)
    assert (reactor.stopped, len(logged)) == ((1, 0) if terminal else (0, 1))


def test_a_part_that_fails_to_stop_does_not_stop_the_others_from_closing():
    trace = []

    async def fails():
        raise RuntimeError("stuck")

    async def start(opened):
        opened.add("memory", closer(trace, "memory"))
        opened.add("delivery", fails)

    service = Lifespan(Reactor(), start, str)
    service.startService()
    with capturedLogs() as logs:
        service.stopService()
    assert trace == ["memory"]
    assert [event["name"] for event in logs if "name" in event] == ["delivery"]


def test_stopping_is_bounded_in_time():
    """Gives up on what hangs, also if it goes on when it is canceled, but waits for what has no timeout."""
    clock, trace, hangs, postgres, attempt = Clock(), [], [Deferred(), Deferred()], Deferred(), Deferred()

    async def webhooks():
        while not attempt.called:
            await DeferredList([Deferred()], consumeErrors=True)

    opened = Opened()
    opened.at_stop(lambda: trace.append("notified"))
    opened.add("Postgres", lambda: postgres, no_timeout=True)
    opened.add("memory", closer(trace, "memory"))
    opened.add("delivery", lambda: hangs[0])
    opened.add("webhooks", webhooks)
    opened.add("listeners", lambda: hangs[1])
    with capturedLogs() as logs:
        closed = Deferred.fromCoroutine(opened.close(clock, 10.0))
        clock.advance(9.9)
        assert trace == ["notified"]
        clock.advance(0.2)  # the time for all of them has passed
        for _ in range(2):
            clock.advance(lifecycle.FINAL_TIMEOUT)
    assert [event["name"] for event in logs if "name" in event] == ["listeners", "webhooks", "delivery"]
    assert trace == ["notified", "memory"]
    clock.advance(1000)
    assert not closed.called
    postgres.callback(None)
    assert closed.called


def test_a_failing_start_prints_one_sentence_and_sets_the_exit_status(status):
    statuses, out = status
    trace, reactor = [], Reactor()

    async def start(opened):
        opened.add("memory", closer(trace, "memory"))
        raise OSError("no")

    service = Lifespan(reactor, start, lambda error: f"It said {error}.")
    with capturedLogs():
        service.startService()
    assert (statuses, reactor.stopped) == ([1], 1)
    assert out.getvalue() == "mailsvc cannot start. It said no.\n"
    service.stopService()
    assert trace == ["memory"]


def test_a_stop_during_the_start_waits_for_the_current_step_only(status):
    trace, step = [], Deferred()

    async def start(opened):
        opened.add("memory", closer(trace, "memory"))
        await step
        opened.add("delivery", closer(trace, "delivery"))
        trace.append("never")

    service = Lifespan(Reactor(), start, str)
    service.startService()
    stopped = []
    service.stopService().addCallback(stopped.append)
    assert (trace, stopped) == ([], [])
    step.callback(None)
    assert trace == ["delivery", "memory"]
    assert stopped and status[0] == []


def test_twistd_gets_the_log_observer_first():
    application, observer = Application("x"), object()
    Lifespan(Reactor(), None, str, observer).setServiceParent(application)
    assert application.getComponent(ILogObserver) is observer
    assert IService(application).getServiceNamed("mailsvc")
