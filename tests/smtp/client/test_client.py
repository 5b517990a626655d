"""One message to a server that keeps to RFC 5321: commands, replies, permission, back-pressure."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.reply import Reply
from tests.smtp.peer import BODY, PIPELINING, PLAIN, STUFFED, Peer, codes, ready

OK = "250 2.0.0 ok"
GO = "354 go ahead"


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


def test_the_client_leaves_the_choice_of_a_reactor_open() -> None:
    code = "import sys, mailsvc.smtp.client.client; sys.exit('twisted.internet.reactor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
