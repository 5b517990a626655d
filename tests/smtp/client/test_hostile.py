"""Servers that break the rules, disconnect, or are broken: no reply is misread, and nothing waits forever."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone, ConnectionLost

from mailsvc.smtp.client.client import GreetingRefused, Lost, Result, Timeouts, TlsFailed
from tests.smtp.fake_server import GREETING, PIPELINING, PLAIN, STUFFED, FakeServer, codes, ready, results_of

OK = "250 2.0.0 ok"
GO = "354 go ahead"

# Whole conversations as a server has them: its turns, given the ehlo and two recipients a@ and b@; then what happens to
# it: the verdicts, whether the final dot went out, whether the connection can be used again.
PIPELINED = {
    "fine": (["250 ok|250 ok|250 ok|354 go", "250 2.0.0 queued"], [250, 250], True, True),
    "several lines": (
        ["250-2.1.0 a|250 2.1.0 b|250 ok|250 ok|354-go|354 ahead", "250-2.0.0 queued|250 2.0.0 as 7"],
        [250, 250],
        True,
        True,
    ),
    "one refused": (["250 ok|550-5.1.1 no|550 5.1.1 such user|250 ok|354 go", "250 ok"], [550, 250], True, True),
    "all refused": (["250 ok|550 no|450 later|503 no"], [550, 450], False, True),
    "all refused, message wanted": (["250 ok|550 no|450 later|354 go", "250 ok"], [550, 450], False, True),
    "all refused, message wanted, 421": (["250 ok|550 no|450 later|354 go", "421 bye"], [550, 450], False, False),
    "sender refused": (["550 no|503 no|503 no|503 no"], [550, 550], False, True),
    "sender refused, message wanted": (["550 no|503 no|503 no|354 go", "554 no"], [550, 550], False, True),
    "sender refused, recipients taken": (["550 no|250 ok|250 ok|354 go"], [550, 550], False, False),
    "421 to MAIL": (["421 bye"], [421, 421], False, False),
    "421 to RCPT": (["250 ok|550 no|421 bye"], [550, 421], False, False),
    "421 to DATA": (["250 ok|550 no|250 ok|421 bye"], [550, 421], False, False),
    "421 to the message": (["250 ok|250 ok|550 no|354 go", "421 bye"], [421, 550], True, False),
    "421 in the middle, and on": (["250 ok|421 bye|250 ok|354 go"], [421, 421], False, False),
    "250 to DATA": (["250 ok|250 ok|250 ok|250 ok"], [None, None], False, False),
    "354 to MAIL": (["354 go|250 ok"], [None, None], False, False),
    "354 to RCPT": (["250 ok|354 go|250 ok"], [None, None], False, False),
    "354 twice": (["250 ok|250 ok|250 ok|354 go|354 go", "250 ok"], [250, 250], True, True),
    "354 after the dot": (["250 ok|250 ok|250 ok|354 go", "354 go|354 go"], [None, None], True, False),
    "refused after the dot": (["250 ok|250 ok|250 ok|354 go", "554 5.7.1 spam"], [554, 554], True, True),
    "other codes in one reply": (["250 ok|250-ok|550 no"], [None, None], False, False),
    "no reply": (["250 ok|what?"], [None, None], False, False),
    "four digits": (["250 ok|2500 ok"], [None, None], False, False),
    "latin-1": (["250 ok|550 m\xf6glich|250 ok|354 go", "250 ok"], [550, 250], True, True),
    "unasked after the end": (["250 ok|250 ok|250 ok|354 go", "250 ok|250 what?"], [250, 250], True, False),
}


def converse(name: str, cuts: list[int]) -> tuple[Result, bytes, bool, bool]:
    server = ready(cuts=cuts)
    result = server.deliver("a@example.org", "b@example.org")
    for turn in PIPELINED[name][0]:
        server.send("".join(f"{line}\r\n" for line in turn.split("|")).encode("latin-1"))
    assert len(result) == 1
    return result[0], server.received(), server.client.usable, server.wire.aborted


@pytest.mark.parametrize("name", PIPELINED)
@pytest.mark.parametrize("cuts", [[], [1], [7, 3]])
def test_conversations(name: str, cuts: list[int]) -> None:
    _, verdicts, sent_dot, usable = PIPELINED[name]
    result, _, usable_after, aborted = converse(name, cuts)
    assert (codes(result), result.sent_dot, usable_after) == (verdicts, sent_dot, usable)
    assert aborted is not usable
    assert result.lost is not None or None not in verdicts


@given(st.sampled_from(sorted(PIPELINED)), st.lists(st.integers(1, 20), min_size=1, max_size=6))
@settings(max_examples=200)
def test_the_result_is_the_same_in_any_segments(name: str, cuts: list[int]) -> None:
    (result, *rest), (whole, *others) = converse(name, cuts), converse(name, [])
    assert (attrs.evolve(result, transcript=""), rest) == (attrs.evolve(whole, transcript=""), others)


@given(st.lists(st.binary(max_size=30), max_size=6), st.sampled_from([PIPELINING, PLAIN]))
@settings(max_examples=200)
def test_no_reply_makes_the_client_raise_or_write_half_a_command(chunks: list[bytes], ehlo: tuple[str, ...]) -> None:
    server = FakeServer().reply(GREETING)
    for chunk in chunks[:2]:
        server.send(chunk)
    server = ready(ehlo=ehlo)
    result = server.deliver()
    for chunk in chunks:
        server.send(chunk.replace(b"\xff", b"\r\n"))
    server.close()
    assert len(result) == 1
    written = server.received()
    assert written.count(b"\r") == written.count(b"\n") == written.count(b"\r\n")
    assert not server.clock.getDelayedCalls()


# Greetings and answers


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46\r\n",
        b"220-mx\r\n550 no\r\n",
        b"2200 mx\r\n",
        b"220_mx\r\n",
        b"\r\n",
        b"220 " + b"x" * 1_000_000,
        b"220-x\r\n" * 1000,
    ],
)
def test_an_invalid_greeting_closes_the_connection(data: bytes) -> None:
    server = FakeServer().send(data)
    (error,) = server.ready_result
    assert isinstance(error, Lost)
    assert "the server sent" in error.reason
    assert server.wire.aborted


@pytest.mark.parametrize("data", [b"220\r\n", b"220 mx\n", "220 mx grüß\r\n".encode(), b"220 mx gr\xfc\xdf\r\n"])
def test_unusual_greetings_are_accepted(data: bytes) -> None:
    assert FakeServer().send(data).received() == b"EHLO me.example\r\n"


def test_an_endless_ehlo_reply() -> None:
    server = FakeServer().reply(GREETING)
    server.send(b"250-X-MORE\r\n" * 50_000)
    assert isinstance(server.ready_result[0], Lost)
    assert server.wire.aborted


def test_an_endless_reply_to_a_recipient() -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "550 no", *["250-more"] * 200)
    assert codes(result[0]) == [550, None]
    assert "lines" in result[0].lost
    assert server.wire.aborted


@pytest.mark.parametrize("keyword", ["STARTTLS", "starttls", "StartTLS"])
def test_keywords_in_any_case_are_seen(keyword: str) -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", f"250 {keyword}")
    assert server.received().endswith(b"STARTTLS\r\n")


def test_a_first_line_that_looks_like_a_keyword() -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-STARTTLS", "250 SIZE 5")
    assert server.client.capabilities.starttls is False


# STARTTLS (RFC 3207 §6)


@pytest.mark.parametrize(
    "more",
    [b"250-mx\r\n250 PIPELINING\r\n", b"250 mx\r\n250 ok\r\n250 ok\r\n354 go\r\n", b"2", b"\n", b"\x16", b"220 go\r\n"],
)
@pytest.mark.parametrize("policy", ["opportunistic", "required"])
def test_replies_injected_before_the_handshake(more: bytes, policy: str) -> None:
    server = FakeServer(tls=policy).reply(GREETING).reply("250-mx", "250 STARTTLS")
    server.received()
    server.send(b"220 go\r\n" + more)
    assert isinstance(server.ready_result[0], TlsFailed)
    assert server.wire.secured is None
    assert server.wire.aborted
    assert server.received() == b""


def test_capabilities_from_before_tls_are_discarded() -> None:
    server = FakeServer(tls="required").reply(GREETING).reply("250-mx", "250-PIPELINING", "250-SIZE 5", "250 STARTTLS").reply("220 go")
    server.received()
    server.handshake()
    assert server.received() == b"EHLO me.example\r\n"
    assert server.client.capabilities is None
    server.reply("250 mx")
    assert not server.client.capabilities.pipelining and server.client.capabilities.size_limit == 0
    server.deliver()
    assert server.received() == b"MAIL FROM:<b@example.net>\r\n"


def test_starttls_is_not_sent_twice() -> None:
    server = FakeServer(tls="required").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("220 go")
    server.received()
    server.handshake()
    server.received()
    server.reply("250-mx", "250 STARTTLS")
    assert server.client.usable
    assert server.received() == b""


def inside_tls(policy: str) -> FakeServer:
    """A server that has accepted TLS, and got EHLO again."""
    server = FakeServer(tls=policy).reply(GREETING).reply("250-mx", "250 STARTTLS").reply("220 go")
    server.handshake().received()
    return server


@pytest.mark.parametrize("policy", ["opportunistic", "required"])
@pytest.mark.parametrize("reply", ["421 bye", "550 no", "450 no"])
def test_ehlo_refused_inside_tls(reply: str, policy: str) -> None:
    server = inside_tls(policy).reply(reply)
    assert isinstance(server.ready_result[0], GreetingRefused)


@pytest.mark.parametrize("replies", [["503 5.5.1 duplicate EHLO"], ["501 no"], ["504 no"], ["500 what?", "503 no"], ["502 no", "502 no"]])
def test_a_server_that_does_not_expect_ehlo_inside_tls_can_be_tried_without(replies: list[str]) -> None:
    server = inside_tls("opportunistic")
    for reply in replies:
        server.reply(reply)
    (error,) = server.ready_result
    assert isinstance(error, TlsFailed) and error.reason.endswith(f"EHLO was refused: {replies[-1]}")
    assert server.received().endswith(b"QUIT\r\n")


@pytest.mark.parametrize("replies", [["503 5.5.1 duplicate EHLO"], ["500 what?", "503 no"]])
def test_if_tls_is_required_its_reply_counts(replies: list[str]) -> None:
    server = inside_tls("required")
    for reply in replies:
        server.reply(reply)
    (error,) = server.ready_result
    assert isinstance(error, GreetingRefused) and error.reply.code == 503


def test_helo_is_enough_inside_tls() -> None:
    server = inside_tls("required").reply("502 5.5.1 what?").reply("250 mx")
    assert server.client.usable and server.client.tls


def test_the_server_closes_during_the_handshake() -> None:
    server = FakeServer(tls="opportunistic").reply(GREETING).reply("250-mx", "250 STARTTLS").reply("220 go").close(ConnectionLost())
    assert isinstance(server.ready_result[0], TlsFailed)


# 421 and lost connections, at each step

STEPS = [
    ("greeting", []),
    ("EHLO", [GREETING]),
    ("STARTTLS", [GREETING, "250 STARTTLS"]),
]


@pytest.mark.parametrize(("step", "before"), STEPS)
def test_421_before_the_connection_is_ready(step: str, before: list[str]) -> None:
    server = FakeServer(tls="opportunistic")
    for line in before:
        server.reply(line.replace("250 STARTTLS", "250-mx\r\n250 STARTTLS"))
    server.received()
    server.reply("421 4.3.2 not now")
    (error,) = server.ready_result
    assert isinstance(error, GreetingRefused)
    assert error.reply.code == 421
    assert server.received() == b""
    assert server.wire.disconnecting


@pytest.mark.parametrize(("step", "before"), STEPS)
@pytest.mark.parametrize("error", [ConnectionDone(), ConnectionLost("reset")])
def test_a_connection_lost_before_it_is_ready(step: str, before: list[str], error: Exception) -> None:
    server = FakeServer(tls="opportunistic")
    for line in before:
        server.reply(line.replace("250 STARTTLS", "250-mx\r\n250 STARTTLS"))
    closed = results_of(server.client.when_closed())
    server.close(error)
    assert isinstance(server.ready_result[0], TlsFailed if step == "STARTTLS" else Lost)
    assert server.ready_result[0].reason and server.ready_result[0].transcript.endswith(server.ready_result[0].reason)
    assert closed == [None]
    assert not server.clock.getDelayedCalls()


MAIL_STEPS = [
    # replies before, stage, verdicts of a, b and c when 421 comes then
    ([], "mail", [421, 421, 421]),
    (["250 ok"], "rcpt", [421, 421, 421]),
    (["250 ok", "550 no"], "rcpt", [550, 421, 421]),
    (["250 ok", "550 no", "250 ok"], "rcpt", [550, 421, 421]),
    (["250 ok", "550 no", "250 ok", "250 ok"], "data", [550, 421, 421]),
]


@pytest.mark.parametrize(("before", "stage", "verdicts"), MAIL_STEPS)
@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
def test_421_at_each_step(before: list[str], stage: str, verdicts: list[int], ehlo: tuple[str, ...]) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver("a@example.org", "b@example.org", "c@example.org")
    for line in before:
        server.reply(line)
    server.received()
    server.reply("421 4.3.2 leaving")
    assert codes(result[0]) == verdicts
    assert {stage_ for stage_, code in zip(result[0].stages, verdicts, strict=True) if code == 421} == {stage}
    assert (result[0].sent_dot, result[0].lost, result[0].final) == (False, None, None)
    assert server.wire.aborted and not server.client.usable
    assert server.received() == b""


@pytest.mark.parametrize(("before", "stage", "verdicts"), MAIL_STEPS)
@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
def test_lost_at_each_step(before: list[str], stage: str, verdicts: list[int], ehlo: tuple[str, ...]) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver("a@example.org", "b@example.org", "c@example.org")
    for line in before:
        server.reply(line)
    server.close(ConnectionLost("reset by server"))
    assert codes(result[0]) == [None if code == 421 else code for code in verdicts]
    assert result[0].sent_dot is False
    assert "lost" in result[0].lost
    assert not server.client.usable
    assert not server.clock.getDelayedCalls()


def test_421_after_the_dot_is_the_reply_to_the_message() -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "250 ok", "550 no", GO).reply("421 4.3.0 later")
    assert codes(result[0]) == [421, 550]
    assert result[0].stages == ("dot", "rcpt")
    assert result[0].sent_dot and result[0].final.code == 421
    assert not server.client.usable


@pytest.mark.parametrize("error", [ConnectionDone(), ConnectionLost("reset")])
@pytest.mark.parametrize("half", [b"", b"25", b"250", b"what?\r\n250 ok\r\n"])
def test_lost_after_the_dot_is_uncertain(error: Exception, half: bytes) -> None:
    """RFC 1047: the server may have it. Nothing is sent again by the connection itself."""
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.received()
    server.reply("250 ok", "250 ok", "550 no", GO)
    assert server.received() == STUFFED
    server.send(half).close(error)
    assert (result[0].sent_dot, result[0].final) == (True, None)
    assert codes(result[0]) == [None, 550]
    assert result[0].lost
    assert server.received() == b""


def test_abort_after_the_dot_is_uncertain() -> None:
    server = ready()
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO)
    server.client.abort("shutting down")
    assert (result[0].sent_dot, result[0].final, result[0].lost) == (True, None, "shutting down")
    server.close()
    assert len(result) == 1


# While the message is written


def writing() -> tuple[FakeServer, list]:
    """A connection whose server reads no more than the first slice of a large message."""
    server = ready()
    result = server.deliver("a@example.org", "b@example.org", body=[b"x" * 98 + b"\r\n"] * 5000)
    server.stop_reading().reply("250 ok", "250 ok", "550 no", GO)
    assert server.wire.producer is not None
    server.received()
    return server, result


@pytest.mark.parametrize("reply", ["552 5.3.4 too big", "451 4.3.1 disk", "421 4.3.2 bye"])
def test_a_reply_before_the_end_stops_the_message(reply: str) -> None:
    server, result = writing()
    server.reply(reply)
    code = int(reply[:3])
    assert codes(result[0]) == [code, 550]
    assert result[0].stages == ("data", "rcpt")
    assert result[0].final.code == code
    assert result[0].sent_dot is False
    assert server.wire.aborted
    assert server.wire.producer is None
    assert server.received() == b"", "no command in the middle of a message"


@pytest.mark.parametrize("reply", ["250 got it", "220 hello", "334 what?"])
def test_an_invalid_reply_before_the_end(reply: str) -> None:
    server, result = writing()
    server.reply(reply)
    assert codes(result[0]) == [None, 550]
    assert result[0].sent_dot is False and "before its end" in result[0].lost
    assert server.wire.aborted


def test_lost_in_the_middle_of_the_message() -> None:
    server, result = writing()
    producer = server.wire.producer
    producer.stopProducing()  # as a transport does
    server.wire.producer = None
    server.close(ConnectionLost("reset"))
    assert codes(result[0]) == [None, 550]
    assert result[0].sent_dot is False
    producer.resumeProducing()
    assert server.received() == b""


def test_a_server_that_reads_nothing() -> None:
    server, result = writing()
    server.advance(179)
    assert not result
    server.advance(2)
    assert "timed out" in result[0].lost
    assert server.wire.aborted and server.wire.producer is None


def test_a_server_that_reads_too_slowly() -> None:
    """One slice in each 179 seconds would be in time for the block, not for the rate."""
    server, result = writing()
    slices = 0
    while not result and slices < 100:
        server.advance(179)
        if not result:
            server.wire.producer.resumeProducing()
            slices += 1
    assert result[0].sent_dot is False
    assert 1 <= slices < 10


def test_a_message_has_a_total_timeout() -> None:
    server = ready(timeouts=Timeouts(rate=0.001, message=3600))
    result = server.deliver(body=[b"x" * 98 + b"\r\n"] * 100_000)
    server.stop_reading().reply("250 ok", "250 ok", GO)
    minutes = 0
    while not result:
        server.advance(60)
        minutes += 1
        if not result:
            server.wire.producer.resumeProducing()
    assert minutes == 60
