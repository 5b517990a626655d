"""Many messages on one connection, its end, and what is written down of it."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import Timeouts
from tests.smtp.peer import PLAIN, Peer, codes, ready, told

OK = "250 2.0.0 ok"
GO = "354 go ahead"


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


def test_a_talkative_server_does_not_fill_the_memory() -> None:
    peer = ready(offers=PLAIN)
    result = peer.deliver(*(f"r{number}@example.org" for number in range(100)))
    peer.says("250 ok")
    for _ in range(100):
        peer.says(*["550-" + "y" * 600] * 90, "550 no")
        assert sum(len(text) for _, _, text in peer.courier._dialogue._entries) < 200_000
    transcript = result[0].transcript
    assert len(transcript) <= 32768
    assert transcript.startswith("S: 220 mx")
    assert "S: 550 no" in transcript.splitlines()[-1]
    assert all(line[:2] in ("C:", "S:", "* ") for line in transcript.splitlines())
