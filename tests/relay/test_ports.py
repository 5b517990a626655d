"""The ports together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.relay.ports import Port, stop_sessions
from mailsvc.runtime.lifecycle import Opened


def test_sessions_that_outlast_a_shutdown_are_given_up_without_a_traceback() -> None:
    async def stop() -> None:
        await Deferred()

    connections: Any = SimpleNamespace(stop=stop)
    ports = [Port(number, "tcp:0", connections, None) for number in ("25", "587")]
    clock, opened = Clock(), Opened()
    opened.add("SMTP sessions", lambda: stop_sessions(ports))
    with capturedLogs() as found:
        closed = Deferred.fromCoroutine(opened.close(clock, 1.0))
        clock.advance(1.0)
    assert closed.called
    assert [each["log_format"] for each in found] == ["{name} did not stop in time; giving up on it"]
