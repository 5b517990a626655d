"""Replies that come too early, are too long or incomplete: which of them count."""

from __future__ import annotations

import pytest

from mailsvc.smtp.client.client import Timeouts
from tests.smtp.fake_server import PIPELINING, PLAIN, STUFFED, codes, ready

GO = "354 go ahead"

# What arrives in one segment with the 354 was sent before the message was: how it is handled, as above.
AHEAD = {
    "354 thrice": ("354 go|354 go|354 go", [None, None], False),
    "accepted at once": ("354 go|250 2.0.0 queued", [None, None], False),
    "accepted at once, after a second 354": ("354 go|354 go|250 2.0.0 queued", [None, None], False),
    "refused at once": ("354 go|552 5.3.4 too big", [552, 552], False),
    "421 at once": ("354 go|421 bye", [421, 421], False),
    "no reply": ("354 go|what?", [None, None], False),
}


@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_reply_before_the_message_does_not_accept_it(name: str, size: int) -> None:
    replies, verdicts, sent_dot = AHEAD[name]
    server = ready()
    result = server.deliver("a@example.org", "b@example.org", body=b"x" * size + b"\r\n")
    server.received()
    server.send("".join(f"{line}\r\n" for line in ["250 ok", "250 ok", "250 ok", *replies.split("|")]).encode())
    assert (codes(result[0]), result[0].sent_dot) == (verdicts, sent_dot)
    assert server.received() == b"" and server.wire.aborted


def test_a_reply_whose_first_half_is_too_early() -> None:
    server = ready()
    result = server.deliver("a@example.org")
    server.received()
    server.send(b"250 ok\r\n250 ok\r\n354 go\r\n25").send(b"0 ok\r\n")
    assert (codes(result[0]), result[0].sent_dot, server.received()) == ([None], False, b"")
    assert result[0].lost == "the server accepted the message before its end: 250 ok"


def test_a_second_354_may_arrive_in_pieces() -> None:
    server = ready()
    result = server.deliver("a@example.org")
    server.received()
    server.send(b"250 ok\r\n250 ok\r\n354 go\r\n35").send(b"4 go\r\n")
    assert server.received() == STUFFED
    server.reply("250 ok")
    assert codes(result[0]) == [250] and server.client.usable


@pytest.mark.parametrize("more", ["250 ok", "550 no", "250 ok|250 ok|354 go"])
def test_a_server_that_replies_before_the_command(more: str) -> None:
    server = ready(ehlo=PLAIN)
    result = server.deliver("a@example.org")
    server.received()
    server.reply("250 ok", *more.split("|"))
    assert codes(result[0]) == [None] and server.received() == b"" and server.wire.aborted
    assert result[0].lost == f"the server replied before the command was sent: {more.partition('|')[0]}"


def test_421_together_with_the_reply_to_mail() -> None:
    server = ready(ehlo=PLAIN)
    result = server.deliver("a@example.org")
    server.reply("250 ok", "421 4.3.2 leaving")
    assert (codes(result[0]), result[0].stages) == ([421], ("rcpt",))


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        (b"250-2.0.0 queu", 250),
        (b"250-2.0.0 queued\r\n", 250),
        (b"250-2.0.0 queued\r\n" * 600, 250),
        (b"250-2.0.0 queued\r\n" * 600 + b"250 2.0.0 as 7\r\n", 250),
        (b"250 " + b"x" * 1_000_000, 250),
        (b"250-2.0.0 queued\r\n550 5.7.1 spam\r\n", 250),
        (b"250-2.0.0 queued\r\nwhat?\r\n", 250),
        (b"554-5.7.1 spam\r\n" * 600, 554),
        (b"554-5.7.1 spam\r\n250 queued\r\n", 554),
        (b"451-4.7.1 later", 451),
    ],
)
@pytest.mark.parametrize("cut", [1, 1460, 1_000_000])
def test_the_first_line_of_the_reply_to_the_message_decides(replies: bytes, code: int, cut: int) -> None:
    if cut == 1 and len(replies) > 100_000:
        replies = replies[:5000]
    server = ready()
    result = server.deliver("a@example.org", "b@example.org")
    server.reply("250 ok", "250 ok", "550 no", GO)
    for start in range(0, len(replies), cut):
        server.send(replies[start : start + cut])
    if not result:
        server.close()
    assert codes(result[0]) == [code, 550]
    assert (result[0].final.code, result[0].stages) == (code, ("dot", "rcpt"))
    assert not server.client.usable
    assert len(str(result[0].final)) < 100_000
    assert replies[:10].decode() in result[0].transcript


def test_an_endless_reply_to_the_message_counts_after_the_timeout() -> None:
    server = ready(timeouts=Timeouts(dot=60))
    result = server.deliver()
    server.reply("250 ok", "250 ok", GO).reply("250-2.0.0 queued")
    assert not result
    server.advance(31).advance(31)
    assert codes(result[0]) == [250]


@pytest.mark.parametrize("end", ["closes", "more lines", "waits"])
def test_the_first_line_of_a_refusal_counts(end: str) -> None:
    """Of a recipient, or of the sender: what is left open by it is open, and what it says is settled."""
    for lines, verdicts in ((["250 ok", "550-no such"], [550, None]), (["550-not you"], [550, 550])):
        server = ready(timeouts=Timeouts(rcpt=60, mail=60))
        result = server.deliver("a@example.org", "b@example.org")
        server.reply(*lines)
        if end == "closes":
            server.close()
        elif end == "more lines":
            server.reply(*["550-and on"] * 200)
        else:
            server.advance(31).advance(31)
        assert codes(result[0]) == verdicts
        assert result[0].lost


@pytest.mark.parametrize("ehlo", [PIPELINING, PLAIN])
@pytest.mark.parametrize("refusal", ["550 5.7.1 not from you", "450 4.1.8 no such domain", "530 5.7.0 Must issue STARTTLS first"])
def test_mail_refused_and_closed(ehlo: tuple[str, ...], refusal: str) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver("a@example.org", "b@example.org")
    server.reply(refusal).close()
    assert [str(reply) for reply in result[0].recipients] == [refusal, refusal]
    assert (result[0].stages, result[0].stale) == (("mail", "mail"), False)


def test_a_421_to_mail_on_a_reused_connection_is_a_verdict() -> None:
    server = ready()
    server.deliver("a@example.org")
    server.reply("250 ok", "250 ok", GO).reply("250 ok")
    result = server.deliver("b@example.org")
    server.reply("550 5.7.1 no more from you").close()
    assert codes(result[0]) == [550] and not result[0].stale


@pytest.mark.parametrize(
    ("replies", "what"), [("", "MAIL"), ("250 ok\r\n", "RCPT"), ("250 ok\r\n25", "RCPT"), ("250 ok\r\n250-a\r\n", "RCPT")]
)
def test_a_timeout_names_the_command_that_got_no_reply(replies: str, what: str) -> None:
    server = ready(timeouts=Timeouts(mail=60, rcpt=60))
    result = server.deliver("a@example.org")
    server.send(replies.encode()).advance(31).advance(31)
    assert result[0].lost == f"timed out waiting for reply to {what}"


@pytest.mark.parametrize(
    ("ehlo", "replies", "cut_after"),
    [
        (PIPELINING, ["250 ok", "250 ok", "550 no"], 2),
        (PIPELINING, ["250 ok"], 0),
        (PIPELINING, [], 0),  # they may be lost together
        (PLAIN, [], None),
        (PIPELINING, ["550 not from you"], None),
        (PIPELINING, ["250 ok", "250 ok", "250 ok", "250 ok"], None),
    ],
)
def test_the_number_of_recipients_that_were_replied_to_before_the_session_ended(
    ehlo: tuple[str, ...], replies: list[str], cut_after: int | None
) -> None:
    for ending in ("close", "421"):
        server = ready(ehlo=ehlo)
        result = server.deliver("a@example.org", "b@example.org", "c@example.org")
        for reply in replies:
            server.reply(reply)
        if ending == "close":
            server.close()
        elif replies:
            server.reply("421 bye")
        else:
            continue  # it answers MAIL
        assert result[0].cut_after == cut_after
