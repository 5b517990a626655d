"""Delays for clients that guess passwords or send errors only, and replies to internal errors."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.smtp.server.commands import COMMANDS
from mailsvc.smtp.server.conversation import Conversation
from mailsvc.smtp.server.session import Limits, Listener
from tests.smtp.dialogue import LISTENERS
from tests.smtp.harness import Client
from tests.smtp.server.test_server import HELO, codes

BROKEN = b"421 4.3.0 Local error, closing connection\r\n"
SLOW = Listener("mx.test", Limits(errors=6, unauthenticated_bytes=None), object(), login_offered=True)


def codes_after(client: Client, data: bytes) -> list[str]:
    """What is answered at once."""
    client.protocol.dataReceived(data)
    return codes(client.received())


def test_errors_are_delayed_after_half_of_the_limit() -> None:
    client = Client(SLOW)
    client.received()
    assert codes_after(client, b"FOO\r\n" * 5 + b"NOOP\r\n") == ["500"] * 3
    client.clock.advance(0.9)
    assert client.received() == b""
    client.clock.advance(0.1)
    assert codes(client.received()) == ["500"]
    client.clock.advance(1)
    assert codes(client.received()) == ["500", "250"]
    assert codes_after(client, b"FOO\r\n") == []
    client.clock.advance(1)
    assert codes(client.received()) == ["500", "421"] and client.closed


def test_refused_logins_are_delayed() -> None:
    client = Client(SLOW)
    client.send(b"STARTTLS\r\n")
    client.received()
    assert codes_after(client, HELO + b"AUTH PLAIN AG1haWxzdmMAd3Jvbmc=\r\n") == ["250"]
    client.clock.advance(1)
    assert codes(client.received()) == ["535"]
    assert codes_after(client, b"AUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n") == ["235"]


def test_disconnecting_during_a_delay_leaves_no_timers() -> None:
    client = Client(SLOW)
    client.protocol.dataReceived(b"FOO\r\n" * 4)
    client.disconnect()
    assert client.recorder is not None and client.recorder.closed_times == 1
    assert not client.clock.getDelayedCalls() and not client.factory.live


def test_a_half_closed_connection_gets_its_replies_after_a_delay() -> None:
    client = Client(SLOW)
    client.received()
    client.protocol.dataReceived(b"FOO\r\n" * 4 + b"NOOP\r\n")
    client.protocol.readConnectionLost()
    client.settle()
    assert codes(client.received()) == ["500"] * 4 + ["250"]


def test_a_flood_during_a_delay_pauses_reading() -> None:
    client = Client(Listener("mx.test", Limits(errors=2, unauthenticated_bytes=None)))
    client.protocol.dataReceived(b"FOO\r\n" * 2)
    client.protocol.dataReceived(b"NOOP\r\n" * 20_000)
    assert client.transport.producerState == "paused"


def test_a_shutdown_during_a_delay_ends_the_session() -> None:
    client = Client(SLOW)
    client.received()
    client.protocol.dataReceived(b"FOO\r\n" * 4)
    stopped = Deferred.fromCoroutine(client.factory.stop())
    client.clock.advance(3)
    client.settle()
    assert codes(client.received()) == ["500"] * 4 + ["421"]
    client.disconnect()
    assert stopped.called


# Internal errors


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that would be logged."""
    logged: list[str] = []

    class Log:
        def failure(self, text: str, *_: object, **__: object) -> None:
            logged.append(text)

    for module in ("protocol", "conversation"):
        monkeypatch.setattr(f"mailsvc.smtp.server.{module}.log", Log())
    return logged


def test_a_failing_session_factory_gets_a_421(quiet: list[str]) -> None:
    def broken(_: object) -> Any:
        raise RuntimeError("a bug")

    client = Client(LISTENERS["open"], open_session=broken)
    assert client.received() == BROKEN and client.closed
    client.protocol.dataReceived(HELO)
    assert client.received() == b"" and len(quiet) == 1
    client.disconnect()
    assert not client.factory.live and not client.clock.getDelayedCalls()


def test_an_internal_error_ends_the_session_with_421(quiet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Conversation, "_check_limits", broken)
    client = Client(LISTENERS["open"])
    client.received()
    client.send(b"NOOP\r\n")
    assert client.received() == b"250 2.0.0 OK\r\n" + BROKEN and client.closed
    assert len(quiet) == 1 and client.recorder is not None and client.recorder.closed_times == 1


def test_a_failing_command_gets_a_451_and_the_session_continues(quiet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(COMMANDS, b"NOOP", broken)
    client = Client(LISTENERS["open"])
    client.received()
    client.send(b"NOOP\r\nRSET\r\n")
    assert codes(client.received()) == ["451", "250"] and len(quiet) == 1
