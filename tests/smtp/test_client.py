"""A client and a server that both keep to RFC 5321: set-up, messages, many of them on one connection."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client import GreetingRefused, Login, LoginRefused, Timeouts, TlsFailed
from tests.smtp.peer import BODY, GREETING, PIPELINING, PLAIN, STUFFED, Peer, codes, ready, told

OK = "250 2.0.0 ok"
GO = "354 go ahead"


# Set-up


def test_the_way_to_ready() -> None:
    peer = Peer()
    assert peer.hears() == b"", "5321 §3.1: the server speaks first"
    peer.says(GREETING)
    assert peer.hears() == b"EHLO me.example\r\n"
    peer.says(*PIPELINING)
    (offers,) = peer.fate
    assert offers.pipelining and offers.size_limit == 1_000_000 and offers.name == "mx.example.org"
    assert peer.courier.usable and peer.courier.offers is offers
    assert peer.wire.no_delay


@pytest.mark.parametrize("code", [500, 502])
def test_helo_for_a_server_that_does_not_know_ehlo(code: int) -> None:
    peer = Peer().says(GREETING).says(f"{code} what?")
    assert peer.hears().endswith(b"HELO me.example\r\n")
    peer.says("250 mx.example.org")
    assert peer.fate[0].extended is False
    peer.hears()
    peer.deliver(size=10, eight_bit=False)
    assert peer.hears() == b"MAIL FROM:<b@example.net>\r\n"


@pytest.mark.parametrize("code", [421, 450, 501, 504, 530, 550, 554])
def test_a_refused_ehlo_is_no_reason_for_helo(code: int) -> None:
    peer = Peer().says(GREETING).says(f"{code} 5.7.1 policy" if code > 499 else f"{code} later")
    assert b"HELO" not in peer.hears().replace(b"EHLO", b"")
    assert isinstance(peer.fate[0], GreetingRefused)
    assert peer.fate[0].reply.code == code
    assert not peer.courier.usable


def test_a_refused_helo() -> None:
    peer = Peer().says(GREETING).says("502 what?").says("550 no")
    assert isinstance(peer.fate[0], GreetingRefused)


@pytest.mark.parametrize(
    ("line", "goodbye"), [("554 5.3.2 no", b"QUIT\r\n"), ("421 4.3.2 later", b""), ("450 wait", b"QUIT\r\n"), ("354 eh", b"QUIT\r\n")]
)
def test_a_refused_greeting(line: str, goodbye: bytes) -> None:
    peer = Peer().says(line)
    (error,) = peer.fate
    assert isinstance(error, GreetingRefused)
    assert error.reply.code == int(line[:3])
    assert f"S: {line}" in error.transcript
    assert peer.hears() == goodbye
    assert peer.wire.disconnecting


def test_a_greeting_of_five_lines() -> None:
    peer = Peer().says("220-one", "220-two", "220-three", "220-four")
    assert peer.hears() == b""
    peer.says("220 five")
    assert peer.hears() == b"EHLO me.example\r\n"


# One message


def test_one_write_for_the_commands_and_one_for_the_message() -> None:
    peer = ready()
    writes = []
    peer.wire.write = writes.append  # type: ignore[method-assign]
    result = peer.deliver("a@example.org", "b@example.org", size=len(BODY))
    assert writes == [
        f"MAIL FROM:<b@example.net> SIZE={len(BODY)}\r\nRCPT TO:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n".encode()
    ]
    peer.says(OK, OK, OK, GO)
    assert writes[1:] == [STUFFED]
    assert not result
    peer.says("250 2.0.0 queued as 7F")
    assert result[0].final == Reply(250, "queued as 7F", "2.0.0"), "the server's own words are kept"
    assert codes(result[0]) == [250, 250]
    assert result[0].stages == ("dot", "dot")
    assert (result[0].sent_dot, result[0].lost, result[0].stale) == (True, None, False)
    assert peer.courier.usable


def test_one_by_one_without_pipelining() -> None:
    peer = ready(offers=PLAIN)
    result = peer.deliver("a@example.org", "b@example.org")
    for command in [b"MAIL FROM:<b@example.net>\r\n", b"RCPT TO:<a@example.org>\r\n", b"RCPT TO:<b@example.org>\r\n"]:
        assert peer.hears() == command
        peer.says("250 ok")
    assert peer.hears() == b"DATA\r\n"
    assert peer.says(GO).hears() == STUFFED
    peer.says("250 done")
    assert codes(result[0]) == [250, 250]


@pytest.mark.parametrize("offers", [PIPELINING, PLAIN])
def test_each_recipient_has_its_own_reply(offers: tuple[str, ...]) -> None:
    peer = ready(offers=offers)
    result = peer.deliver(*(f"r{number}@example.org" for number in range(5)))
    peer.says("250 ok")
    for line in ["250 ok", "550-5.1.1 no such", "450 4.2.1 later", "251 forwarded", "452 4.5.3 too many"]:
        peer.says(line.replace("550-", "550 "))
    peer.says(GO).says("250 2.6.0 got it")
    assert codes(result[0]) == [250, 550, 450, 250, 452]
    assert result[0].stages == ("dot", "rcpt", "rcpt", "dot", "rcpt")
    assert result[0].recipients[1] == Reply(550, "no such", "5.1.1")


def test_all_recipients_refused_each_for_its_own_reason() -> None:
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org")
    peer.says("250 ok", "550 5.1.1 no", "451 4.3.0 later", "554 5.5.1 no valid recipients")
    assert codes(result[0]) == [550, 451]
    assert (result[0].sent_dot, result[0].final) == (False, None)
    assert peer.courier.usable


def test_a_354_with_nobody_to_write_to_gets_a_lone_dot() -> None:
    """2920 §3.1."""
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org")
    peer.hears()
    peer.says("250 ok", "550 5.1.1 no", "450 4.2.1 later", GO)
    assert peer.hears() == b".\r\n"
    assert not result
    peer.says("554 no valid recipients")
    assert codes(result[0]) == [550, 450]
    assert result[0].sent_dot is False
    assert peer.courier.usable


def test_without_pipelining_no_data_after_all_recipients_were_refused() -> None:
    peer = ready(offers=PLAIN)
    result = peer.deliver("a@example.org")
    peer.says("250 ok")
    peer.hears()
    peer.says("550 no")
    assert peer.hears() == b""
    assert codes(result[0]) == [550]
    assert peer.courier.usable


@pytest.mark.parametrize("last", ["503 no", "554 no"])
def test_a_refused_sender_is_the_verdict_for_all(last: str) -> None:
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org")
    peer.says("550 5.7.1 not you", "503 what?", "503 what?", last)
    assert codes(result[0]) == [550, 550]
    assert result[0].stages == ("mail", "mail")
    assert result[0].sender == Reply(550, "not you", "5.7.1")
    assert peer.courier.usable


def test_a_refused_sender_ends_it_without_pipelining() -> None:
    peer = ready(offers=PLAIN)
    result = peer.deliver("a@example.org")
    peer.hears()
    peer.says("450 4.7.1 later")
    assert codes(result[0]) == [450]
    assert peer.hears() == b""


def test_a_refused_data_is_the_verdict_for_those_who_were_taken() -> None:
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org")
    peer.says("250 ok", "250 ok", "550 5.1.1 no", "451 4.3.0 disk")
    assert codes(result[0]) == [451, 550]
    assert result[0].stages == ("data", "rcpt")


@pytest.mark.parametrize("reply", ["552 5.3.4 too big", "451 4.3.0 try again", "554 5.7.1 spam"])
def test_a_message_refused_after_the_dot(reply: str) -> None:
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org")
    peer.says("250 ok", "250 ok", "550 5.1.1 no", GO).says(reply)
    assert codes(result[0]) == [int(reply[:3]), 550]
    assert result[0].stages == ("dot", "rcpt")
    assert result[0].sent_dot
    assert peer.courier.usable


def test_nothing_to_send_to() -> None:
    peer = ready()
    (result,) = peer.deliver("", "not an address")
    assert codes(result) == [553, 553]
    assert result.stages == ("ours", "ours")
    assert peer.hears() == b""


# What this server cannot take


def test_a_message_larger_than_the_server_takes_is_not_tried() -> None:
    peer = ready()
    (result,) = peer.deliver("a@example.org", "b@example.org", size=1_000_001)
    assert [str(reply)[:9] for reply in result.recipients] == ["552 5.3.4"] * 2
    assert result.stages == ("ours", "ours")
    assert (result.sender, result.final, result.sent_dot) == (None, None, False)
    assert peer.hears() == b""
    assert peer.courier.usable
    peer.deliver(size=1_000_000)
    assert b"SIZE=1000000" in peer.hears()


def test_internationalised_addresses_need_smtputf8() -> None:
    peer = ready()
    result = peer.deliver("ü@example.org", "a@example.org", "a@bücher.example")
    assert peer.hears() == b"MAIL FROM:<b@example.net>\r\nRCPT TO:<a@example.org>\r\nDATA\r\n"
    peer.says("250 ok", "250 ok", GO).says(OK)
    assert [str(reply)[:9] for reply in result[0].recipients] == ["550 5.6.7", "250 2.0.0", "550 5.6.7"]
    assert result[0].stages == ("ours", "dot", "ours")


@pytest.mark.parametrize("envelope", [{"smtputf8": True}, {"sender": "ü@example.net"}])
def test_an_internationalised_message_needs_smtputf8(envelope) -> None:
    (result,) = ready().deliver("a@example.org", **envelope)
    assert str(result.recipients[0]).startswith("550 5.6.7")


def test_smtputf8_is_used_where_it_is_offered() -> None:
    peer = ready(offers=("250-mx", "250-SMTPUTF8", "250-8BITMIME", "250 PIPELINING"))
    peer.deliver("ü@example.org")
    assert peer.hears() == "MAIL FROM:<b@example.net> BODY=8BITMIME SMTPUTF8\r\nRCPT TO:<ü@example.org>\r\nDATA\r\n".encode()


def test_an_8_bit_message_needs_8bitmime() -> None:
    (result,) = ready(offers=PLAIN).deliver(eight_bit=True)
    assert str(result.recipients[0]).startswith("554 5.6.3")
    peer = ready()
    peer.deliver(eight_bit=True)
    assert peer.hears().startswith(b"MAIL FROM:<b@example.net> BODY=8BITMIME\r\n")


def test_a_bad_sender_is_not_sent() -> None:
    peer = ready()
    (result,) = peer.deliver(sender="b@example.net>\r\nRCPT TO:<x")
    assert str(result.recipients[0]).startswith("553 5.1.7")
    assert peer.hears() == b""


def test_the_limits_of_rfc_9422() -> None:
    peer = ready(offers=("250-mx", "250-PIPELINING", "250 LIMITS RCPTMAX=2 MAILMAX=1"))
    result = peer.deliver("a@example.org", "b@example.org", "c@example.org")
    assert peer.hears().count(b"RCPT") == 2
    peer.says("250 ok", "250 ok", "250 ok", GO).says(OK)
    assert codes(result[0]) == [250, 250, 452]
    assert not peer.courier.usable


def test_many_recipients_go_in_groups_that_fit_a_window() -> None:
    peer = ready()
    result = peer.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    groups = 0
    while not result:
        commands = peer.hears()
        assert 0 < len(commands) <= 16384
        groups += 1
        peer.says(*["250 ok"] * (commands.count(b"\r\n") - commands.count(b"DATA\r\n")))
        if commands.endswith(b"DATA\r\n"):
            peer.says(GO).says(OK)
    assert groups == 5
    assert codes(result[0]) == [250] * 1000


def test_no_further_group_after_a_refused_sender() -> None:
    peer = ready()
    result = peer.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    commands = peer.hears()
    peer.says("550 no", *["503 no"] * (commands.count(b"\r\n") - 1))
    assert codes(result[0]) == [550] * 1000
    assert peer.hears() == b""


# Permission to end


def test_without_permission_there_is_no_dot() -> None:
    peer = ready()
    asked = []
    result = peer.deliver(may_send_dot=lambda: bool(asked.append(peer.wire.value())))
    peer.hears()
    peer.says("250 ok", "250 ok", GO)
    assert asked == [b""], "asked once, before the last octets"
    assert peer.hears() == b""
    assert peer.wire.aborted
    assert (result[0].sent_dot, result[0].final) == (False, None)
    assert codes(result[0]) == [None]
    assert "withheld" in result[0].lost


def test_a_large_message_is_asked_about_at_its_end() -> None:
    peer = ready()
    asked = []
    result = peer.deliver(body=[b"x" * 98 + b"\r\n"] * 2000, may_send_dot=lambda: bool(asked.append(len(peer.wire.value()))))
    peer.hears()
    peer.says("250 ok", "250 ok", GO)
    assert len(asked) == 1 and asked[0] >= 131_072
    written = peer.hears()
    assert b"\r\n.\r\n" not in written
    assert len(written) < 200_000
    assert result[0].sent_dot is False


@pytest.mark.parametrize("fault", ["pieces", "permission"])
def test_an_exception_of_the_caller_ends_the_connection_and_is_told(fault: str) -> None:
    def pieces():
        yield b"x\r\n"
        if fault == "pieces":
            raise KeyError("gone")

    def permission() -> bool:
        raise KeyError("gone")

    peer = ready()
    result = peer.deliver(body=pieces(), may_send_dot=permission if fault == "permission" else None)
    peer.hears()
    peer.says("250 ok", "250 ok", GO)
    assert isinstance(result[0], KeyError)
    assert peer.wire.aborted
    assert b".\r\n" not in peer.hears()


@pytest.mark.parametrize("body", [b"a\nb\r\n", b"a\r", [b"a\r", b"b\r\n"], [b"x" * 200_000, b"\n.\n"]])
def test_a_message_with_a_bare_line_end_is_refused_by_us(body) -> None:
    peer = ready()
    result = peer.deliver("a@example.org", "b@example.org", body=body)
    peer.says("250 ok", "250 ok", "550 no", GO)
    assert [str(reply)[:5] for reply in result[0].recipients] == ["554 5", "550 n"]
    assert result[0].stages == ("ours", "rcpt")
    assert result[0].sent_dot is False
    assert peer.wire.aborted
    assert b"\r\n.\r\n" not in peer.hears()


def test_one_message_at_a_time() -> None:
    peer = ready()
    peer.deliver()
    with pytest.raises(RuntimeError):
        peer.deliver()
    with pytest.raises(RuntimeError):
        Peer().deliver()


# Back-pressure


def test_a_large_message_waits_for_the_peer_to_read() -> None:
    peer = ready()
    body = b"." + b"x" * 97 + b"\r\n"
    result = peer.deliver(body=[body] * 5000)
    peer.hears()
    written = b""
    real_write = peer.wire.write

    def write(octets: bytes) -> None:
        real_write(octets)
        if peer.wire.producer:
            peer.wire.producer.pauseProducing()

    peer.wire.write = write  # type: ignore[method-assign]
    peer.says("250 ok", "250 ok", GO)
    rounds = 0
    while peer.wire.producer:
        slice_ = peer.hears()
        assert len(slice_) <= 2 * 65536
        written += slice_
        rounds += 1
        peer.wire.producer.resumeProducing()
    written += peer.hears()
    assert rounds > 5
    assert written == (b"." + body) * 5000 + b".\r\n"
    peer.says(OK)
    assert result[0].final.code == 250


@given(st.binary(max_size=300), st.lists(st.integers(1, 70_000), min_size=1, max_size=5), st.data())
@settings(max_examples=50)
def test_any_slicing_and_any_pauses_give_the_same_octets(text: bytes, sizes: list[int], data) -> None:
    lines = text.replace(b"\r", b"").replace(b"\n", b"\r\n.") * 300
    pieces, at = [], 0
    while at < len(lines):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(lines[at : at + size])
        at += size
    peer = ready()
    peer.deliver(body=pieces)
    peer.hears()
    real_write = peer.wire.write

    def write(octets: bytes) -> None:
        real_write(octets)
        if peer.wire.producer and data.draw(st.booleans()):
            peer.wire.producer.pauseProducing()

    peer.wire.write = write  # type: ignore[method-assign]
    peer.says("250 ok", "250 ok", GO)
    while peer.wire.producer:
        peer.wire.producer.resumeProducing()
    wire = peer.hears()
    end = b".\r\n" if not lines or lines.endswith(b"\r\n") else b"\r\n.\r\n"
    stuffed = (b"." if lines.startswith(b".") else b"") + lines.replace(b"\r\n.", b"\r\n..")
    assert wire == stuffed + end


# Reuse


def test_many_messages_without_rset() -> None:
    peer = ready()
    for _ in range(3):
        result = peer.deliver()
        assert peer.hears().startswith(b"MAIL FROM:<b@example.net>")
        peer.says("250 ok", "250 ok", GO).says(OK)
        peer.hears()
        assert result[0].final.code == 250
    assert peer.courier.transactions == 3


@pytest.mark.parametrize(
    "ending",
    [
        ["250 ok", "550 no", "503 no"],
        ["250 ok", "250 ok", "451 no"],
        ["250 ok", "250 ok", GO, "554 spam"],
        ["250 ok", "550 no", GO, "250 ok"],
    ],
)
def test_rset_after_a_transaction_that_may_be_open(ending: list[str]) -> None:
    peer = ready()
    peer.deliver()
    peer.hears()
    for line in ending:
        peer.says(line)
    peer.hears()
    result = peer.deliver()
    assert peer.hears().startswith(b"RSET\r\nMAIL FROM:<b@example.net>")
    peer.says("250 reset", "250 ok", "250 ok", GO).says(OK)
    assert result[0].final.code == 250
    peer.hears()
    peer.deliver()
    assert peer.hears().startswith(b"MAIL")


def test_rset_alone_without_pipelining() -> None:
    peer = ready(offers=PLAIN)
    peer.deliver()
    peer.says("250 ok").says("550 no")
    peer.hears()
    result = peer.deliver()
    assert peer.hears() == b"RSET\r\n"
    assert peer.says("250 ok").hears() == b"MAIL FROM:<b@example.net>\r\n"
    peer.says("250 ok").says("250 ok").says(GO).says(OK)
    assert result[0].final.code == 250


@pytest.mark.parametrize(
    "replies", [["503 bad sequence", "250 ok", "250 ok", GO], ["500 what?", "503 sender already specified", "503 no", "503 no"]]
)
def test_a_refused_rset_is_not_the_mails_fault(replies: list[str]) -> None:
    peer = ready()
    peer.deliver()
    peer.says("250 ok", "550 no", "503 no")
    peer.hears()
    result = peer.deliver("a@example.org")
    peer.hears()
    peer.says(*replies)
    assert codes(result[0]) == [None]
    assert "RSET was refused" in result[0].lost
    assert result[0].stale and not result[0].sent_dot
    assert peer.wire.aborted and peer.hears() == b""


def test_a_server_that_does_not_let_go_of_the_last_mail() -> None:
    peer = ready()
    peer.deliver()
    peer.says("250 ok", "250 ok", GO).says(OK)
    result = peer.deliver()
    peer.says("503 5.5.1 Sender already specified")
    assert codes(result[0]) == [None]
    assert result[0].stale
    assert peer.wire.aborted


def test_a_503_to_the_first_mail_is_a_verdict() -> None:
    peer = ready()
    result = peer.deliver()
    peer.says("503 5.5.1 no", "503 no", "503 no")
    assert codes(result[0]) == [503]
    assert not result[0].stale


@pytest.mark.parametrize("line", ["421 4.4.2 idle", "250 2.0.0 what?"])
def test_a_reply_to_nothing_ends_a_waiting_connection(line: str) -> None:
    peer = ready()
    closed = told(peer.courier.when_closed())
    peer.says(line)
    assert not peer.courier.usable
    assert peer.wire.aborted
    peer.closes()
    assert closed == [None]
    (result,) = peer.deliver()
    assert result.stale and codes(result) == [None] and not result.sent_dot
    assert peer.hears() == b""


def test_a_421_that_crosses_with_the_next_mail() -> None:
    peer = ready()
    peer.deliver()
    peer.says("250 ok", "250 ok", GO).says(OK)
    result = peer.deliver()
    peer.says("421 4.4.2 idle too long")
    assert result[0].stale
    assert codes(result[0]) == [421]


def test_a_421_right_behind_the_last_reply() -> None:
    peer = ready()
    result = peer.deliver()
    peer.says("250 ok", "250 ok", GO)
    seen = []
    result_of = peer.courier._waiting  # what the caller sees when it is told
    assert result_of is not None
    result_of.addCallback(lambda _: seen.append(peer.courier.usable))
    peer.says(OK, "421 bye")
    assert result[0].final.code == 250
    assert seen == [False]


def test_half_a_line_makes_a_connection_unusable() -> None:
    peer = ready().sends(b"42")
    assert not peer.courier.usable
    assert peer.deliver()[0].lost
    assert peer.hears() == b""


def test_the_transcript_of_the_second_message_is_its_own() -> None:
    peer = ready()
    first = peer.deliver("a@example.org")
    peer.says("250 ok", "250 ok", GO).says(OK)
    second = peer.deliver("b@example.org")
    peer.says("250 ok", "250 ok", GO).says(OK)
    assert "C: EHLO me.example" in first[0].transcript
    assert "EHLO" not in second[0].transcript
    assert "a@example.org" not in second[0].transcript
    assert second[0].transcript.splitlines()[0] == "* message 2 on this connection"


# Goodbye


def test_quit() -> None:
    peer = ready()
    closed = told(peer.courier.quit())
    assert peer.hears() == b"QUIT\r\n"
    assert not peer.courier.usable
    assert not peer.wire.disconnecting
    peer.says("221 bye")
    assert peer.wire.disconnecting and not peer.wire.aborted
    assert not closed
    peer.closes()
    assert closed == [None]
    assert not peer.clock.getDelayedCalls()


def test_quit_does_not_wait_long() -> None:
    peer = ready(timeouts=Timeouts(quit=5))
    peer.courier.quit()
    peer.waits(4.9)
    assert not peer.wire.aborted
    peer.waits(0.2)
    assert peer.wire.aborted


def test_quit_of_a_closed_connection() -> None:
    peer = ready().closes()
    assert told(peer.courier.quit()) == [None]


def test_quit_during_a_message_gives_it_up() -> None:
    peer = ready()
    result = peer.deliver()
    peer.courier.quit()
    assert peer.wire.aborted
    assert result[0].lost == "given up"


def test_a_canceled_delivery_says_what_was_sent() -> None:
    peer = ready()
    result = peer.deliver()
    peer.says("250 ok", "250 ok", GO)
    peer.courier._waiting.cancel()  # type: ignore[union-attr]
    assert (result[0].lost, result[0].sent_dot, codes(result[0])) == ("canceled", True, [None])
    assert peer.wire.aborted


def test_a_canceled_set_up() -> None:
    peer = Peer()
    peer.courier.ready.cancel()
    assert peer.wire.aborted
    assert peer.fate[0].reason == "canceled"


# TLS policy and credentials (the handshake itself: test_client_tls)


def test_tls_is_used_when_it_is_offered() -> None:
    peer = Peer(tls="opportunistic", host="mx.example.org").says(GREETING).says("250-mx", "250 starttls")
    assert peer.hears().endswith(b"STARTTLS\r\n")
    assert peer.wire.secured is None
    peer.says("220 go")
    assert peer.wire.secured is not None
    assert peer.hears() == b"", "nothing before the handshake is over"


def test_clear_text_when_tls_is_not_offered_or_refused() -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says(*PLAIN)
    assert peer.courier.usable
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("454 4.7.0 not now")
    assert peer.courier.usable and peer.courier.tls is None


@pytest.mark.parametrize(
    "answer", [PLAIN, ("500 what?", "250 mx"), ("250-mx", "250 STARTTLS", "454 4.7.0 not now"), ("250-mx", "250 STARTTLS", "554 no")]
)
def test_required_tls_is_never_left_out(answer: tuple[str, ...]) -> None:
    peer = Peer(tls="required").says(GREETING)
    for line in answer:
        peer.says(line)
    assert isinstance(peer.fate[0], TlsFailed)
    assert not peer.courier.usable


def test_a_server_that_leaves_at_starttls() -> None:
    peer = Peer(tls="opportunistic").says(GREETING).says("250-mx", "250 STARTTLS").says("421 bye")
    assert isinstance(peer.fate[0], GreetingRefused)


def test_a_transport_without_tls() -> None:
    peer = Peer(tls="opportunistic")
    peer.wire.startTLS = None  # type: ignore[method-assign]
    peer.says(GREETING).says("250-mx", "250 STARTTLS").says("220 go")
    assert isinstance(peer.fate[0], TlsFailed)


def test_credentials_are_sent_inside_tls_only() -> None:
    peer = Peer(login=Login("user", "secret")).says(GREETING).says("250-mx", "250 AUTH PLAIN")
    assert isinstance(peer.fate[0], TlsFailed)
    assert b"AUTH" not in peer.hears()


@pytest.mark.parametrize("reply", ["235 2.7.0 welcome", "535 5.7.8 no", "334 "])
def test_credentials_are_nowhere_to_read(reply: str) -> None:
    peer = Peer(login=Login("user", "secret"))
    peer.courier.tls = "TLSv1.3"  # as after a handshake
    peer.says(GREETING).says("250-mx", "250 AUTH PLAIN")
    assert peer.hears().endswith(b"AUTH PLAIN AHVzZXIAc2VjcmV0\r\n")
    peer.says(reply)
    if reply.startswith("235"):
        result = peer.deliver()
        peer.says("250 ok").says("250 ok").says("550 no")
        transcript = result[0].transcript
    else:
        assert isinstance(peer.fate[0], LoginRefused)
        transcript = peer.fate[0].transcript
    assert "C: AUTH PLAIN (credentials)" in transcript
    everything = transcript + repr(peer.fate[0]) + str(peer.fate[0]) + repr(peer.courier._login)
    assert "secret" not in everything and "AHVz" not in everything


def test_a_server_without_auth_plain() -> None:
    peer = Peer(login=Login("user", "secret"))
    peer.courier.tls = "TLSv1.3"
    peer.says(GREETING).says("250-mx", "250 AUTH GSSAPI")
    assert isinstance(peer.fate[0], LoginRefused)


# Transcript


def test_the_transcript() -> None:
    peer = ready()
    result = peer.deliver()
    peer.waits(0.25).says("250 2.1.0 ok", "250 2.1.5 ok", GO)
    peer.waits(0.5).says("250-2.0.0 queued", "250 2.0.0 as 7")
    assert result[0].transcript.splitlines()[-9:] == [
        "C: MAIL FROM:<b@example.net>",
        "C: RCPT TO:<to@example.org>",
        "C: DATA",
        "S: 250 2.1.0 ok  [0.250 s]",
        "S: 250 2.1.5 ok  [0.250 s]",
        "S: 354 go ahead  [0.250 s]",
        "C: (message and final dot)",
        "S: 250-2.0.0 queued",
        "S: 250 2.0.0 as 7  [0.750 s]",
    ]
    assert "Subject" not in result[0].transcript


def test_no_transcript_when_none_is_wanted() -> None:
    peer = ready(transcript=False)
    result = peer.deliver()
    peer.says("250 ok", "250 ok", GO).says(OK)
    assert result[0].transcript == ""


def test_a_transcript_is_of_bounded_size_and_keeps_the_end() -> None:
    peer = ready()
    result = peer.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    while not result:
        commands = peer.hears()
        peer.says(*["250 " + "y" * 400] * (commands.count(b"\r\n") - commands.count(b"DATA\r\n")))
        if commands.endswith(b"DATA\r\n"):
            peer.says(GO).says("250 2.0.0 queued as 7")
    transcript = result[0].transcript
    assert len(transcript) <= 32768
    assert transcript.startswith("S: 220 mx")
    assert "lines left out" in transcript
    assert "queued as 7" in transcript.splitlines()[-1]
