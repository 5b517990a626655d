"""Many messages on one connection, its end, and its transcripts."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import Timeouts
from tests.smtp.fake_server import PLAIN, FakeServer, codes, ready, results_of

OK = "250 2.0.0 ok"
GO = "354 go ahead"


# Reuse


def test_many_messages_without_rset() -> None:
    server = ready()
    for _ in range(3):
        result = server.deliver()
        assert server.received().startswith(b"MAIL FROM:<b@example.net>")
        server.reply("250 ok", "250 ok", GO).reply(OK)
        server.received()
        assert result[0].final.code == 250
    assert server.client.transactions == 3


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
    server = ready()
    server.deliver()
    server.received()
    for line in ending:
        server.reply(line)
    server.received()
    result = server.deliver()
    assert server.received().startswith(b"RSET\r\nMAIL FROM:<b@example.net>")
    server.reply("250 reset", "250 ok", "250 ok", GO).reply(OK)
    assert result[0].final.code == 250
    server.received()
    server.deliver()
    assert server.received().startswith(b"MAIL")


def test_without_pipelining_rset_is_sent_alone() -> None:
    server = ready(ehlo=PLAIN)
    server.deliver()
    server.reply("250 ok").reply("550 no")
    server.received()
    result = server.deliver()
    assert server.received() == b"RSET\r\n"
    assert server.reply("250 ok").received() == b"MAIL FROM:<b@example.net>\r\n"
    server.reply("250 ok").reply("250 ok").reply(GO).reply(OK)
    assert result[0].final.code == 250


@pytest.mark.parametrize(
    "replies", [["503 bad sequence", "250 ok", "250 ok", GO], ["500 what?", "503 sender already specified", "503 no", "503 no"]]
)
def test_a_refused_rset_is_no_verdict(replies: list[str]) -> None:
    server = ready()
    server.deliver()
    server.reply("250 ok", "550 no", "503 no")
    server.received()
    result = server.deliver("a@example.org")
    server.received()
    server.reply(*replies)
    assert codes(result[0]) == [None]
    assert "RSET was refused" in result[0].lost
    assert result[0].stale and not result[0].sent_dot
    assert server.wire.aborted and server.received() == b""


def test_a_server_that_remembers_the_last_transaction() -> None:
    server = ready()
    server.deliver()
    server.reply("250 ok", "250 ok", GO).reply(OK)
    result = server.deliver()
    server.reply("503 5.5.1 Sender already specified")
    assert codes(result[0]) == [None]
    assert result[0].stale
    assert server.wire.aborted


def test_a_503_to_the_first_mail_is_a_verdict() -> None:
    server = ready()
    result = server.deliver()
    server.reply("503 5.5.1 no", "503 no", "503 no")
    assert codes(result[0]) == [503]
    assert not result[0].stale


@pytest.mark.parametrize("line", ["421 4.4.2 idle", "250 2.0.0 what?"])
def test_an_unexpected_reply_closes_an_idle_connection(line: str) -> None:
    server = ready()
    closed = results_of(server.client.when_closed())
    server.reply(line)
    assert not server.client.usable
    assert server.wire.aborted
    server.close()
    assert closed == [None]
    (result,) = server.deliver()
    assert result.stale and codes(result) == [None] and not result.sent_dot
    assert server.received() == b""


def test_a_421_that_crosses_the_next_mail() -> None:
    server = ready()
    server.deliver()
    server.reply("250 ok", "250 ok", GO).reply(OK)
    result = server.deliver()
    server.reply("421 4.4.2 idle too long")
    assert result[0].stale
    assert codes(result[0]) == [421]


def test_a_421_right_after_the_last_reply() -> None:
    server = ready()
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO)
    seen = []
    result_of = server.client._result  # what the caller sees when it is results_of
    assert result_of is not None
    result_of.addCallback(lambda _: seen.append(server.client.usable))
    server.reply(OK, "421 bye")
    assert result[0].final.code == 250
    assert seen == [False]


def test_half_a_line_makes_a_connection_unusable() -> None:
    server = ready().send(b"42")
    assert not server.client.usable
    assert server.deliver()[0].lost
    assert server.received() == b""


def test_each_message_has_its_own_transcript() -> None:
    server = ready()
    first = server.deliver("a@example.org")
    server.reply("250 ok", "250 ok", GO).reply(OK)
    second = server.deliver("b@example.org")
    server.reply("250 ok", "250 ok", GO).reply(OK)
    assert "C: EHLO me.example" in first[0].transcript
    assert "EHLO" not in second[0].transcript
    assert "a@example.org" not in second[0].transcript
    assert second[0].transcript.splitlines()[0] == "* message 2 on this connection"


# Goodbye


def test_quit() -> None:
    server = ready()
    closed = results_of(server.client.quit())
    assert server.received() == b"QUIT\r\n"
    assert not server.client.usable
    assert not server.wire.disconnecting
    server.reply("221 bye")
    assert server.wire.disconnecting and not server.wire.aborted
    assert not closed
    server.close()
    assert closed == [None]
    assert not server.clock.getDelayedCalls()


def test_quit_times_out() -> None:
    server = ready(timeouts=Timeouts(quit=5))
    server.client.quit()
    server.advance(4.9)
    assert not server.wire.aborted
    server.advance(0.2)
    assert server.wire.aborted


def test_quit_of_a_closed_connection() -> None:
    server = ready().close()
    assert results_of(server.client.quit()) == [None]


def test_quit_during_a_message_aborts_it() -> None:
    server = ready()
    result = server.deliver()
    server.client.quit()
    assert server.wire.aborted
    assert result[0].lost == "given up"


def test_a_canceled_delivery_has_a_result() -> None:
    server = ready()
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO)
    server.client._result.cancel()  # type: ignore[union-attr]
    assert (result[0].lost, result[0].sent_dot, codes(result[0])) == ("canceled", True, [None])
    assert server.wire.aborted


def test_a_canceled_handshake() -> None:
    server = FakeServer()
    server.client.ready.cancel()
    assert server.wire.aborted
    assert server.ready_result[0].reason == "canceled"


# Transcript


def test_the_transcript() -> None:
    server = ready()
    result = server.deliver()
    server.advance(0.25).reply("250 2.1.0 ok", "250 2.1.5 ok", GO)
    server.advance(0.5).reply("250-2.0.0 queued", "250 2.0.0 as 7")
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


def test_no_transcript_if_not_wanted() -> None:
    server = ready(transcript=False)
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO).reply(OK)
    assert result[0].transcript == ""


def test_a_transcript_is_bounded_and_keeps_the_end() -> None:
    server = ready()
    result = server.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)))
    while not result:
        commands = server.received()
        server.reply(*["250 " + "y" * 400] * (commands.count(b"\r\n") - commands.count(b"DATA\r\n")))
        if commands.endswith(b"DATA\r\n"):
            server.reply(GO).reply("250 2.0.0 queued as 7")
    transcript = result[0].transcript
    assert len(transcript) <= 32768
    assert transcript.startswith("S: 220 mx")
    assert "lines left out" in transcript
    assert "queued as 7" in transcript.splitlines()[-1]


def test_the_transcript_of_a_talkative_server_is_bounded() -> None:
    server = ready(ehlo=PLAIN)
    result = server.deliver(*(f"r{number}@example.org" for number in range(100)))
    server.reply("250 ok")
    for _ in range(100):
        server.reply(*["550-" + "y" * 600] * 90, "550 no")
        assert sum(len(text) for _, _, text in server.client._transcript._entries) < 200_000
    transcript = result[0].transcript
    assert len(transcript) <= 32768
    assert transcript.startswith("S: 220 mx")
    assert "S: 550 no" in transcript.splitlines()[-1]
    assert all(line[:2] in ("C:", "S:", "* ") for line in transcript.splitlines())
