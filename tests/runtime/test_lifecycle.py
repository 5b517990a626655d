"""Starting in order, stopping in reverse, and what a start that fails says."""

from __future__ import annotations

import io

import pytest
from twisted.application.service import Application, IService
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, capturedLogs

from mailsvc.runtime import lifecycle
from mailsvc.runtime.lifecycle import Lifespan, Opened


class Reactor:
    """Runs what is to run when it runs at once."""

    def __init__(self):
        self.stopped = 0

    def callWhenRunning(self, call):
        call()

    def stop(self):
        self.stopped += 1


@pytest.fixture
def status(monkeypatch):
    """What the process would end with, and what it would say."""
    statuses, out = [], io.StringIO()
    monkeypatch.setattr(lifecycle, "exit_with", statuses.append)
    monkeypatch.setattr(lifecycle.sys, "__stderr__", out)
    return statuses, out


def closer(trace, name):
    async def close():
        trace.append(name)

    return close


def test_what_was_started_is_stopped_in_reverse():
    trace = []

    async def start(opened):
        for name in ("memory", "delivery", "listeners"):
            opened.add(name, closer(trace, name))

    service = Lifespan(Reactor(), start, str)
    service.startService()
    service.stopService()
    assert trace == ["listeners", "delivery", "memory"]


def test_what_does_not_stop_keeps_nobody_from_stopping():
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


def test_stopping_takes_no_longer_than_it_may():
    """What hangs is left as it is; what must end in good order is waited for."""
    clock, trace, hangs, postgres = Clock(), [], [Deferred(), Deferred()], Deferred()
    opened = Opened()
    opened.at_stop(lambda: trace.append("told"))
    opened.add("Postgres", lambda: postgres, patient=True)
    opened.add("memory", closer(trace, "memory"))
    opened.add("delivery", lambda: hangs[0])
    opened.add("listeners", lambda: hangs[1])
    with capturedLogs() as logs:
        closed = Deferred.fromCoroutine(opened.close(clock, 10.0))
        clock.advance(9.9)
        assert trace == ["told"]
        clock.advance(0.2)  # the time for all of them is over
        clock.advance(lifecycle.LAST)
    assert [event["name"] for event in logs if "name" in event] == ["listeners", "delivery"]
    assert trace == ["told", "memory"]
    clock.advance(1000)
    assert not closed.called
    postgres.callback(None)
    assert closed.called


def test_a_failing_start_says_one_sentence_and_ends_with_a_status(status):
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


def test_a_stop_during_the_start_waits_for_the_step_and_goes_no_further(status):
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


def test_twistd_gets_the_observer_before_it_logs():
    application, observer = Application("x"), object()
    Lifespan(Reactor(), None, str, observer).setServiceParent(application)
    assert application.getComponent(ILogObserver) is observer
    assert IService(application).getServiceNamed("mailsvc")
