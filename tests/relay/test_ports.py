"""The ports together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.relay.ports import Port, stop_sessions
from mailsvc.runtime.lifecycle import Opened
from tests.relay.harness import RelayRig


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


def test_strangers_on_port_25_leave_connections_to_customers() -> None:
    rig = RelayRig()  # five connections
    strangers = [rig.connect("25", f"192.0.2.{n}") for n in range(1, 6)]
    assert [each.greeting[:9] for each in strangers] == ["220 mx.te"] * 4 + ["421 4.3.2"]
    customer = rig.connect("587", "198.51.100.1")
    assert customer.greeting.startswith("220")
    customer.disconnect()
    assert rig.connect("25", "10.1.2.3").greeting.startswith("220")
    strangers.pop(0).disconnect()
    assert rig.connect("25", "192.0.2.7").greeting.startswith("220")
