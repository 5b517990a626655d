"""One message to a server that follows RFC 5321: commands, replies, permission, back-pressure."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.plan import SendMode
from tests.smtp.fake_server import BODY, CHUNKING, PIPELINING, PLAIN, STUFFED, FakeServer, codes, ready

OK = "250 2.0.0 ok"
GO = "354 go ahead"


# One message


def test_commands_are_one_write_and_the_message_another() -> None:
    server = ready()
    writes = []
    server.wire.write = writes.append  # type: ignore[method-assign]
    result = server.deliver("a@example.org", "b@example.org", size=len(BODY))
    assert writes == [
        f"MAIL FROM:<b@example.net> SIZE={len(BODY)}\r\nRCPT TO:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n".encode()
    ]
    server.reply(OK, OK, OK, GO)
    assert writes[1:] == [STUFFED]
    assert not result
    server.reply("250 2.0.0 queued as 7F")
    assert result[0].final == Reply(250, "queued as 7F", "2.0.0"), "the server's own words are kept"
    assert codes(result[0]) == [250, 250]
    assert result[0].stages == ("dot", "dot")
    assert (result[0].sent_dot, result[0].lost, result[0].stale) == (True, None, False)
    assert server.client.usable


@pytest.mark.parametrize(("ehlo", "mode"), [(PLAIN, "data"), (PIPELINING, "single"), (CHUNKING, "single")])
def test_without_pipelining_commands_are_sent_one_by_one(ehlo: tuple[str, ...], mode: SendMode) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver("a@example.org", "b@example.org", mode=mode)
    for command in [b"MAIL FROM:<b@example.net>\r\n", b"RCPT TO:<a@example.org>\r\n", b"RCPT TO:<b@example.org>\r\n"]:
        assert server.received() == command
        server.reply("250 ok")
    assert server.received() == b"DATA\r\n"
    assert server.reply(GO).received() == STUFFED
    server.reply("250 done")
    assert codes(result[0]) == [250, 250]


@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
def test_each_recipient_has_its_own_reply(ehlo: tuple[str, ...]) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver(*(f"r{number}@example.org" for number in range(5)))
    server.reply("250 ok")
    for line in ["250 ok", "550-5.1.1 no such", "450 4.2.1 later", "251 forwarded", "452 4.5.3 too many"]:
        server.reply(line.replace("550-", "550 "))
    server.reply(GO).reply("250 2.6.0 got it")
    assert codes(result[0]) == [250, 550, 450, 250, 452]
    assert result[0].stages == ("dot", "rcpt", "rcpt", "dot", "rcpt")
    assert result[0].recipients[1] == Reply(550, "no such", "5.1.1")


def test_each_refused_recipient_has_its_own_verdict() -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "550 5.1.1 no", "451 4.3.0 later", "554 5.5.1 no valid recipients")
    assert codes(result[0]) == [550, 451]
    assert (result[0].sent_dot, result[0].final) == (False, None)
    assert server.client.usable


def test_a_354_without_recipients_gets_a_single_dot() -> None:
    """2920 §3.1."""
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.received()
    server.reply("250 ok", "550 5.1.1 no", "450 4.2.1 later", GO)
    assert server.received() == b".\r\n"
    assert not result
    server.reply("554 no valid recipients")
    assert codes(result[0]) == [550, 450]
    assert result[0].sent_dot is False
    assert server.client.usable


def test_without_pipelining_there_is_no_data_after_all_recipients_were_refused() -> None:
    server = ready(ehlo=PLAIN)
    result = server.deliver("a@example.org")
    server.reply("250 ok")
    server.received()
    server.reply("550 no")
    assert server.received() == b""
    assert codes(result[0]) == [550]
    assert server.client.usable


@pytest.mark.parametrize("last", ["503 no", "554 no"])
def test_a_refused_sender_is_the_verdict_for_all(last: str) -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("550 5.7.1 not you", "503 what?", "503 what?", last)
    assert codes(result[0]) == [550, 550]
    assert result[0].stages == ("mail", "mail")
    assert result[0].sender == Reply(550, "not you", "5.7.1")
    assert server.client.usable


def test_without_pipelining_a_refused_sender_ends_the_transaction() -> None:
    server = ready(ehlo=PLAIN)
    result = server.deliver("a@example.org")
    server.received()
    server.reply("450 4.7.1 later")
    assert codes(result[0]) == [450]
    assert server.received() == b""


def test_a_refused_data_is_the_verdict_for_accepted_recipients() -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "250 ok", "550 5.1.1 no", "451 4.3.0 disk")
    assert codes(result[0]) == [451, 550]
    assert result[0].stages == ("data", "rcpt")


@pytest.mark.parametrize("reply", ["552 5.3.4 too big", "451 4.3.0 try again", "554 5.7.1 spam"])
def test_a_message_refused_after_the_dot(reply: str) -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "250 ok", "550 5.1.1 no", GO).reply(reply)
    assert codes(result[0]) == [int(reply[:3]), 550]
    assert result[0].stages == ("dot", "rcpt")
    assert result[0].sent_dot
    assert server.client.usable


def test_no_valid_recipients() -> None:
    server = ready()
    (result,) = server.deliver("", "not an address")
    assert codes(result) == [553, 553]
    assert result.stages == ("ours", "ours")
    assert server.received() == b""


# What this server cannot take


def test_a_message_over_the_servers_size_limit_is_not_sent() -> None:
    server = ready()
    (result,) = server.deliver("a@example.org", "b@example.org", size=1_000_001)
    assert [str(reply)[:9] for reply in result.recipients] == ["552 5.3.4"] * 2
    assert result.stages == ("ours", "ours")
    assert (result.sender, result.final, result.sent_dot) == (None, None, False)
    assert server.received() == b""
    assert server.client.usable
    server.deliver(size=1_000_000)
    assert b"SIZE=1000000" in server.received()


def test_internationalized_addresses_require_smtputf8() -> None:
    server = ready()
    result = server.deliver("ü@example.org", "a@example.org", "a@bücher.example")
    assert server.received() == b"MAIL FROM:<b@example.net>\r\nRCPT TO:<a@example.org>\r\nDATA\r\n"
    server.reply("250 ok", "250 ok", GO).reply(OK)
    assert [str(reply)[:9] for reply in result[0].recipients] == ["550 5.6.7", "250 2.0.0", "550 5.6.7"]
    assert result[0].stages == ("ours", "dot", "ours")


@pytest.mark.parametrize("envelope", [{"smtputf8": True}, {"sender": "ü@example.net"}])
def test_an_internationalized_message_requires_smtputf8(envelope) -> None:
    (result,) = ready().deliver("a@example.org", **envelope)
    assert str(result.recipients[0]).startswith("550 5.6.7")


def test_smtputf8_is_used_if_announced() -> None:
    server = ready(ehlo=("250-mx", "250-SMTPUTF8", "250-8BITMIME", "250 PIPELINING"))
    server.deliver("ü@example.org")
    assert server.received() == "MAIL FROM:<b@example.net> BODY=8BITMIME SMTPUTF8\r\nRCPT TO:<ü@example.org>\r\nDATA\r\n".encode()


def test_an_8_bit_message_requires_8bitmime() -> None:
    (result,) = ready(ehlo=PLAIN).deliver(eight_bit=True)
    assert str(result.recipients[0]).startswith("554 5.6.3")
    server = ready()
    server.deliver(eight_bit=True)
    assert server.received().startswith(b"MAIL FROM:<b@example.net> BODY=8BITMIME\r\n")


@pytest.mark.parametrize(
    ("reply", "envelope", "refused"),
    [
        ("555 5.5.4 Unsupported option: SIZE=100", {"size": 100}, True),
        ("501 Syntax error in parameters", {"eight_bit": True}, True),
        ("504 no", {"size": 100}, True),
        ("504 no", {"ret": "HDRS"}, True),
        ("501 Syntax error", {}, False),
        ("501 5.1.7 Bad sender address syntax", {"size": 100}, False),
        ("550 5.7.1 not from you", {"size": 100}, False),
        ("451 4.3.0 later", {"size": 100}, False),
        ("555 5.5.4 SMTPUTF8?", {"size": 100, "smtputf8": True}, False),
    ],
)
def test_a_refusal_of_mail_that_may_be_about_its_parameters(reply: str, envelope: dict, refused: bool) -> None:
    server = ready(ehlo=("250-mx", "250-SIZE", "250-8BITMIME", "250-DSN", "250-SMTPUTF8", "250 PIPELINING"))
    result = server.deliver(**envelope)
    server.reply(reply, "503 no", "503 no")
    assert result[0].parameters_refused is refused
    assert codes(result[0]) == [int(reply[:3])]


@pytest.mark.parametrize(
    ("replies", "envelope", "refused"),
    [
        (["501 what is NOTIFY?", "555 5.5.4 no"], {"notify": ("NEVER", "NEVER")}, True),
        (["501 what is NOTIFY?", "555 5.5.4 no"], {"originals": ("rfc822;a@x.example", "rfc822;a@x.example")}, True),
        (["501 what is NOTIFY?", "250 ok"], {"notify": ("NEVER", "NEVER")}, False),
        (["501 what is NOTIFY?", "550 5.1.1 no"], {"notify": ("NEVER", "NEVER")}, False),
        (["501 5.1.3 bad address", "501 5.1.3 bad address"], {"notify": ("NEVER", "NEVER")}, False),
        (["501 bad address", "501 bad address"], {}, False),
    ],
)
def test_refusals_of_all_recipients_that_may_be_about_parameters(replies: list[str], envelope: dict, refused: bool) -> None:
    server = ready(ehlo=("250-mx", "250-DSN", "250 PIPELINING"))
    result = server.deliver("a@example.org", "b@example.org", **envelope)
    server.reply("250 ok", *replies, "354 go" if "250 ok" in replies else "503 no")
    if not result:
        server.reply(OK)
    assert result[0].parameters_refused is refused


def test_parameters_can_be_left_out() -> None:
    server = ready(ehlo=("250-mx", "250-SIZE 5000", "250-8BITMIME", "250-DSN", "250-SMTPUTF8", "250 PIPELINING"))
    server.client.leave_out_parameters()
    result = server.deliver(size=100, ret="HDRS", notify=("NEVER",))
    assert server.received() == b"MAIL FROM:<b@example.net>\r\nRCPT TO:<to@example.org>\r\nDATA\r\n"
    server.reply("555 no", "503 no", "503 no")
    assert not result[0].parameters_refused
    assert codes(server.deliver(size=5001)[0]) == [552], "its limit still holds"


def test_a_bad_sender_is_not_sent() -> None:
    server = ready()
    (result,) = server.deliver(sender="b@example.net>\r\nRCPT TO:<x")
    assert str(result.recipients[0]).startswith("553 5.1.7")
    assert server.received() == b""


def test_the_limits_of_rfc_9422() -> None:
    server = ready(ehlo=("250-mx", "250-PIPELINING", "250 LIMITS RCPTMAX=2 MAILMAX=1"))
    result = server.deliver("a@example.org", "b@example.org", "c@example.org")
    assert server.received().count(b"RCPT") == 2
    server.reply("250 ok", "250 ok", "250 ok", GO).reply(OK)
    assert codes(result[0]) == [250, 250, 452]
    assert not server.client.usable


def test_many_recipients_are_sent_in_groups() -> None:
    server = ready()
    result = server.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    groups = 0
    while not result:
        commands = server.received()
        assert 0 < len(commands) <= 16384
        groups += 1
        server.reply(*["250 ok"] * (commands.count(b"\r\n") - commands.count(b"DATA\r\n")))
        if commands.endswith(b"DATA\r\n"):
            server.reply(GO).reply(OK)
    assert groups == 5
    assert codes(result[0]) == [250] * 1000


def test_no_further_group_after_a_refused_sender() -> None:
    server = ready()
    result = server.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    commands = server.received()
    server.reply("550 no", *["503 no"] * (commands.count(b"\r\n") - 1))
    assert codes(result[0]) == [550] * 1000
    assert server.received() == b""


# Permission to end


def test_without_permission_the_dot_is_not_sent() -> None:
    server = ready()
    checks = []
    result = server.deliver(may_send_dot=lambda: bool(checks.append(server.wire.value())))
    server.received()
    server.reply("250 ok", "250 ok", GO)
    assert checks == [b""], "checked once, before the last bytes"
    assert server.received() == b""
    assert server.wire.aborted
    assert (result[0].sent_dot, result[0].final) == (False, None)
    assert codes(result[0]) == [None]
    assert "withheld" in result[0].lost


def test_permission_for_a_large_message_is_checked_at_its_end() -> None:
    server = ready()
    checks = []
    result = server.deliver(body=[b"x" * 98 + b"\r\n"] * 2000, may_send_dot=lambda: bool(checks.append(len(server.wire.value()))))
    server.received()
    server.reply("250 ok", "250 ok", GO)
    assert len(checks) == 1 and checks[0] >= 131_072
    written = server.received()
    assert b"\r\n.\r\n" not in written
    assert len(written) < 200_000
    assert result[0].sent_dot is False


@pytest.mark.parametrize("fault", ["pieces", "permission"])
def test_an_exception_of_the_caller_closes_the_connection_and_is_raised(fault: str) -> None:
    def pieces():
        yield b"x\r\n"
        if fault == "pieces":
            raise KeyError("gone")

    def permission() -> bool:
        raise KeyError("gone")

    server = ready()
    result = server.deliver(body=pieces(), may_send_dot=permission if fault == "permission" else None)
    server.received()
    server.reply("250 ok", "250 ok", GO)
    assert isinstance(result[0], KeyError)
    assert server.wire.aborted
    assert b".\r\n" not in server.received()


@pytest.mark.parametrize("body", [b"a\nb\r\n", b"a\r", [b"a\r", b"b\r\n"], [b"x" * 200_000, b"\n.\n"]])
def test_a_message_with_a_bare_line_end_is_not_sent(body) -> None:
    server = ready()
    result = server.deliver("a@example.org", "b@example.org", body=body)
    server.reply("250 ok", "250 ok", "550 no", GO)
    assert [str(reply)[:5] for reply in result[0].recipients] == ["554 5", "550 n"]
    assert result[0].stages == ("ours", "rcpt")
    assert result[0].sent_dot is False
    assert server.wire.aborted
    assert b"\r\n.\r\n" not in server.received()


def test_one_message_at_a_time() -> None:
    server = ready()
    server.deliver()
    with pytest.raises(RuntimeError):
        server.deliver()
    with pytest.raises(RuntimeError):
        FakeServer().deliver()


# Back-pressure


def test_a_large_message_waits_for_the_server_to_read() -> None:
    server = ready()
    body = b"." + b"x" * 97 + b"\r\n"
    result = server.deliver(body=[body] * 5000)
    server.received()
    written = b""
    real_write = server.wire.write

    def write(content: bytes) -> None:
        real_write(content)
        if server.wire.producer:
            server.wire.producer.pauseProducing()

    server.wire.write = write  # type: ignore[method-assign]
    server.reply("250 ok", "250 ok", GO)
    rounds = 0
    while server.wire.producer:
        slice_ = server.received()
        assert len(slice_) <= 2 * 65536
        written += slice_
        rounds += 1
        server.wire.producer.resumeProducing()
    written += server.received()
    assert rounds > 5
    assert written == (b"." + body) * 5000 + b".\r\n"
    server.reply(OK)
    assert result[0].final.code == 250


@given(st.binary(max_size=300), st.lists(st.integers(1, 70_000), min_size=1, max_size=5), st.data())
@settings(max_examples=50)
def test_the_bytes_are_the_same_in_any_pieces_and_with_any_pauses(text: bytes, sizes: list[int], data) -> None:
    lines = text.replace(b"\r", b"").replace(b"\n", b"\r\n.") * 300
    pieces, at = [], 0
    while at < len(lines):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(lines[at : at + size])
        at += size
    server = ready()
    server.deliver(body=pieces)
    server.received()
    real_write = server.wire.write

    def write(content: bytes) -> None:
        real_write(content)
        if server.wire.producer and data.draw(st.booleans()):
            server.wire.producer.pauseProducing()

    server.wire.write = write  # type: ignore[method-assign]
    server.reply("250 ok", "250 ok", GO)
    while server.wire.producer:
        server.wire.producer.resumeProducing()
    wire = server.received()
    end = b".\r\n" if not lines or lines.endswith(b"\r\n") else b"\r\n.\r\n"
    stuffed = (b"." if lines.startswith(b".") else b"") + lines.replace(b"\r\n.", b"\r\n..")
    assert wire == stuffed + end


def test_importing_the_client_does_not_install_a_reactor() -> None:
    code = "import sys, mailsvc.smtp.client.client; sys.exit('twisted.internet.reactor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
