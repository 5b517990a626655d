"""Who guesses or floods gets no more than an answer a second; and what is answered when our own side breaks."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.smtp.server.commands import COMMANDS
from mailsvc.smtp.server.conversation import Conversation
from mailsvc.smtp.server.session import Limits, Listener
from tests.smtp.dialogue import LISTENERS
from tests.smtp.harness import Call
from tests.smtp.server.test_server import HELO, codes

BROKEN = b"421 4.3.0 Local error, closing\r\n"
SLOW = Listener("mx.test", Limits(errors=6, stranger_octets=None), object(), login_offered=True)


def said(made: Call, octets: bytes) -> list[str]:
    """What is answered at once."""
    made.receiver.dataReceived(octets)
    return codes(made.heard())


def test_the_second_half_of_the_errors_takes_a_second_each() -> None:
    made = Call(SLOW)
    made.heard()
    assert said(made, b"FOO\r\n" * 5 + b"NOOP\r\n") == ["500"] * 3
    made.clock.advance(0.9)
    assert made.heard() == b""
    made.clock.advance(0.1)
    assert codes(made.heard()) == ["500"]
    made.clock.advance(1)
    assert codes(made.heard()) == ["500", "250"]
    assert said(made, b"FOO\r\n") == []
    made.clock.advance(1)
    assert codes(made.heard()) == ["500", "421"] and made.closed


def test_a_refused_login_takes_a_second() -> None:
    made = Call(SLOW)
    made.say(b"STARTTLS\r\n")
    made.heard()
    assert said(made, HELO + b"AUTH PLAIN AG1haWxzdmMAd3Jvbmc=\r\n") == ["250"]
    made.clock.advance(1)
    assert codes(made.heard()) == ["535"]
    assert said(made, b"AUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n") == ["235"]


def test_a_client_that_leaves_meanwhile_leaves_nothing() -> None:
    made = Call(SLOW)
    made.receiver.dataReceived(b"FOO\r\n" * 4)
    made.hang_up()
    assert made.recorder is not None and made.recorder.dropped_times == 1
    assert not made.clock.getDelayedCalls() and not made.receivers.live


def test_a_client_that_only_stops_talking_meanwhile_is_answered() -> None:
    made = Call(SLOW)
    made.heard()
    made.receiver.dataReceived(b"FOO\r\n" * 4 + b"NOOP\r\n")
    made.receiver.readConnectionLost()
    made.settle()
    assert codes(made.heard()) == ["500"] * 4 + ["250"]


def test_a_flood_meanwhile_is_held_back() -> None:
    made = Call(Listener("mx.test", Limits(errors=2, stranger_octets=None)))
    made.receiver.dataReceived(b"FOO\r\n" * 2)
    made.receiver.dataReceived(b"NOOP\r\n" * 20_000)
    assert made.transport.producerState == "paused"


def test_a_shutdown_meanwhile_ends_the_session() -> None:
    made = Call(SLOW)
    made.heard()
    made.receiver.dataReceived(b"FOO\r\n" * 4)
    stopped = Deferred.fromCoroutine(made.receivers.stop())
    made.clock.advance(3)
    made.settle()
    assert codes(made.heard()) == ["500"] * 4 + ["421"]
    made.hang_up()
    assert stopped.called


# ── when our own side breaks ──


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


def test_a_connection_that_nobody_can_receive_is_told_so(quiet: list[str]) -> None:
    def broken(_: object) -> Any:
        raise RuntimeError("a bug")

    made = Call(LISTENERS["open"], welcome=broken)
    assert made.heard() == BROKEN and made.closed
    made.receiver.dataReceived(HELO)
    assert made.heard() == b"" and len(quiet) == 1
    made.hang_up()
    assert not made.receivers.live and not made.clock.getDelayedCalls()


def test_a_conversation_that_breaks_off_says_so(quiet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Conversation, "_judge", broken)
    made = Call(LISTENERS["open"])
    made.heard()
    made.say(b"NOOP\r\n")
    assert made.heard() == b"250 2.0.0 OK\r\n" + BROKEN and made.closed
    assert len(quiet) == 1 and made.recorder is not None and made.recorder.dropped_times == 1


def test_a_command_that_breaks_costs_itself_alone(quiet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(COMMANDS, b"NOOP", broken)
    made = Call(LISTENERS["open"])
    made.heard()
    made.say(b"NOOP\r\nRSET\r\n")
    assert codes(made.heard()) == ["451", "250"] and len(quiet) == 1
