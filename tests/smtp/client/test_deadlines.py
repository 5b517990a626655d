"""5321 §4.5.3.2: nobody waits for ever, and nobody is given up too early."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import Lost, Timeouts, TlsFailed
from tests.smtp.peer import GREETING, PIPELINING, PLAIN, Peer, codes, ready

OK = "250 2.0.0 ok"
GO = "354 go ahead"


def expect_timeout_at(peer: Peer, seconds: float, over: list) -> None:
    peer.waits(seconds - 0.5)
    assert not over
    peer.waits(1)
    assert over and peer.wire.aborted


def test_the_times_are_those_of_the_standard() -> None:
    """5321 §4.5.3.2."""
    times = Timeouts()
    assert (times.greeting, times.mail, times.rcpt, times.data, times.block, times.dot) == (300, 300, 300, 120, 180, 600)


def test_waiting_for_the_greeting() -> None:
    peer = Peer()
    expect_timeout_at(peer, 300, peer.fate)
    assert "greeting" in peer.fate[0].reason


def test_a_greeting_that_comes_late() -> None:
    peer = Peer().waits(299).says(GREETING)
    assert peer.hears() == b"EHLO me.example\r\n"
    expect_timeout_at(peer, 300, peer.fate)
    assert "EHLO" in peer.fate[0].reason


def test_a_greeting_that_drips_does_not_gain_time() -> None:
    peer = Peer()
    for octet in b"220 mx.example.org":
        peer.waits(20).sends(bytes([octet]))
    assert isinstance(peer.fate[0], Lost)


def test_waiting_for_tls() -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("220 go")
    expect_timeout_at(peer, 60, peer.fate)
    assert isinstance(peer.fate[0], TlsFailed)


def test_the_set_up_as_a_whole() -> None:
    peer = Peer(tls="opportunistic", timeouts=Timeouts(setup=400)).waits(299).says(GREETING)
    expect_timeout_at(peer, 101, peer.fate)


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
@pytest.mark.parametrize("offers", [PIPELINING, PLAIN])
def test_waiting_for_each_reply(before: list[str], seconds: float, what: str, offers: tuple[str, ...]) -> None:
    peer = ready(offers=offers)
    result = peer.deliver()
    for line in before:
        peer.waits(1).says(line)
        peer.hears()
    if offers is PLAIN and what == "empty message":
        return  # no DATA was said
    expect_timeout_at(peer, seconds, result)
    assert what in result[0].lost
    assert result[0].sent_dot is (what == "message")


def test_nine_minutes_after_the_dot_are_not_too_late() -> None:
    peer = ready()
    result = peer.deliver()
    peer.says("250 ok", "250 ok", GO).waits(540).says("250 2.0.0 at last")
    assert codes(result[0]) == [250]


def test_each_reply_has_its_own_time_but_a_message_has_one_in_all() -> None:
    peer = ready(timeouts=Timeouts(message=1000))
    result = peer.deliver(*(f"r{number}@example.org" for number in range(10)))
    for _ in range(4):
        peer.waits(240).says("250 ok")
        assert not result
    expect_timeout_at(peer, 40, result)


def test_a_connection_at_rest_has_no_deadline() -> None:
    peer = ready()
    peer.deliver()
    peer.says("250 ok", "250 ok", GO).says(OK)
    peer.waits(100_000)
    assert peer.courier.usable
    assert not peer.clock.getDelayedCalls()


def test_one_timer_for_many_messages() -> None:
    peer = ready()
    made = []
    real = peer.clock.callLater
    peer.clock.callLater = lambda *args: (made.append(args), real(*args))[1]  # type: ignore[method-assign]
    for _ in range(100):
        peer.deliver()
        peer.says("250 ok", "250 ok", GO).says(OK).waits(0.01)
    assert len(made) <= 1
