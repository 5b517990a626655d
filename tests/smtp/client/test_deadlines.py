"""5321 §4.5.3.2: the client waits long enough, but not forever."""

from __future__ import annotations

from typing import Any

import pytest

from mailsvc.smtp.client.client import Lost, Timeouts, TlsFailed
from tests.smtp.fake_server import CHUNKING, GREETING, PIPELINING, PLAIN, FakeServer, codes, ready

OK = "250 2.0.0 ok"
GO = "354 go ahead"


def expect_timeout_at(server: FakeServer, seconds: float, over: list) -> None:
    server.advance(seconds - 0.5)
    assert not over
    server.advance(1)
    assert over and server.wire.aborted


def test_default_timeouts_are_those_of_rfc_5321() -> None:
    """5321 §4.5.3.2."""
    times = Timeouts()
    assert (times.greeting, times.mail, times.rcpt, times.data, times.block, times.dot) == (300, 300, 300, 120, 180, 600)


def test_waiting_for_the_greeting() -> None:
    server = FakeServer()
    expect_timeout_at(server, 300, server.ready_result)
    assert "greeting" in server.ready_result[0].reason


def test_a_late_greeting_is_accepted() -> None:
    server = FakeServer().advance(299).reply(GREETING)
    assert server.received() == b"EHLO me.example\r\n"
    expect_timeout_at(server, 300, server.ready_result)
    assert "EHLO" in server.ready_result[0].reason


def test_a_slow_greeting_does_not_extend_the_timeout() -> None:
    server = FakeServer()
    for byte in b"220 mx.example.org":
        server.advance(20).send(bytes([byte]))
    assert isinstance(server.ready_result[0], Lost)


def test_waiting_for_tls() -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("220 go")
    expect_timeout_at(server, 60, server.ready_result)
    assert isinstance(server.ready_result[0], TlsFailed)


def test_the_handshake_as_a_whole_times_out() -> None:
    server = FakeServer(tls="opportunistic", timeouts=Timeouts(setup=400)).advance(299).reply(GREETING)
    expect_timeout_at(server, 101, server.ready_result)


@pytest.mark.parametrize(
    ("before", "seconds", "what"),
    [
        ([], 300, "MAIL"),
        (["250 ok"], 300, "RCPT"),
        (["250 ok", "250 ok"], 120, "DATA"),
        (["250 ok", "250 ok", GO], 600, "message"),
        (["250 ok", "550 no", GO], 600, "empty message"),
    ],
)
@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
def test_waiting_for_each_reply(before: list[str], seconds: float, what: str, ehlo: tuple[str, ...]) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver()
    for line in before:
        server.advance(1).reply(line)
        server.received()
    if ehlo is PLAIN and what == "empty message":
        return  # DATA was not sent
    expect_timeout_at(server, seconds, result)
    assert what in result[0].lost
    assert result[0].sent_dot is (what == "message")
    assert result[0].unpipelined is (ehlo is PIPELINING and what in ("RCPT", "DATA"))


@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_does_not_answer_a_further_message(ehlo: tuple[str, ...], reset: bool) -> None:
    server = ready(ehlo=ehlo)
    server.deliver()
    refused = ["250 ok", "550 no", "503 no"] if ehlo is PIPELINING else ["250 ok", "550 no"]
    for line in refused if reset else ["250 ok", "250 ok", GO, OK]:
        server.reply(line)
    result = server.deliver()
    expect_timeout_at(server, 60, result)
    assert (result[0].stale, result[0].sent_dot, codes(result[0])) == (True, False, [None])
    assert result[0].lost == "timed out waiting for reply to MAIL"


@pytest.mark.parametrize(("before", "seconds", "what"), [(1, 300, "RCPT"), (2, 120, "DATA"), (3, 600, "message")])
@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
def test_a_server_that_has_answered_a_further_message_has_the_usual_time(before: int, seconds: float, what: str, ehlo: Any) -> None:
    server = ready(ehlo=ehlo)
    server.deliver()
    for line in ["250 ok", "250 ok", GO, OK]:
        server.reply(line)
    result = server.deliver()
    for line in ["250 ok", "250 ok", GO][:before]:
        server.advance(59).reply(line)
    expect_timeout_at(server, seconds, result)
    assert what in result[0].lost


def test_a_further_message_that_was_sent_with_its_commands_has_the_time_of_a_message() -> None:
    """The server may have it: a new connection is no way out (1047)."""
    server = ready(ehlo=CHUNKING)
    server.deliver(chunking=True)
    server.reply("250 ok", "250 ok", OK)
    result = server.deliver(chunking=True)
    expect_timeout_at(server, 600, result)
    assert (result[0].stale, result[0].sent_dot) == (False, True)


def test_a_reply_nine_minutes_after_the_dot_is_accepted() -> None:
    server = ready()
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO).advance(540).reply("250 2.0.0 at last")
    assert codes(result[0]) == [250]


def test_each_reply_has_its_own_timeout_and_the_message_a_total_one() -> None:
    server = ready(timeouts=Timeouts(message=1000))
    result = server.deliver(*(f"r{number}@example.org" for number in range(10)))
    for _ in range(4):
        server.advance(240).reply("250 ok")
        assert not result
    expect_timeout_at(server, 40, result)


def test_an_idle_connection_has_no_timeout() -> None:
    server = ready()
    server.deliver()
    server.reply("250 ok", "250 ok", GO).reply(OK)
    server.advance(100_000)
    assert server.client.usable
    assert not server.clock.getDelayedCalls()


def test_one_timer_for_many_messages() -> None:
    server = ready()
    created = []
    real = server.clock.callLater
    server.clock.callLater = lambda *args: (created.append(args), real(*args))[1]  # type: ignore[method-assign]
    for _ in range(100):
        server.deliver()
        server.reply("250 ok", "250 ok", GO).reply(OK).advance(0.01)
    assert len(created) <= 1
