"""Messages sent with BDAT (RFC 3030): writes, the command that each reply answers, and the outcome after failures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionDone, ConnectionLost

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.client import Envelope, Result, Timeouts
from mailsvc.smtp.client.dot_stuffing import SLICE, BareLineEnd, BdatCoding
from tests.smtp.fake_server import BODY, CHUNKING, PIPELINING, STUFFED, FakeServer, codes, ready, results_of

OK = "250 2.0.0 ok"
COMMANDS = b"MAIL FROM:<b@example.net> SIZE=%d\r\nRCPT TO:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT %d LAST\r\n"
LARGE = [b"x" * 98 + b"\r\n"] * 5000


def open_(**options) -> FakeServer:
    return ready(ehlo=CHUNKING, **options)


def sent(server: FakeServer, *recipients: str, **more) -> list:
    """A message to two recipients, unless others are named, which has been written."""
    result = server.deliver(*recipients or ("a@example.org", "b@example.org"), chunking=True, **more)
    server.received()
    return result


# One round trip


def test_everything_is_one_write() -> None:
    server = open_()
    writes: list[bytes] = []
    server.wire.write = writes.append  # type: ignore[method-assign]
    result = server.deliver("a@example.org", "b@example.org", chunking=True)
    assert writes == [COMMANDS % (len(BODY), len(BODY)) + BODY], "as it is: no dot is doubled, none is added"
    server.reply(OK, OK, OK)
    assert not result
    server.reply("250 2.0.0 queued as 7F")
    assert result[0].final == Reply(250, "queued as 7F", "2.0.0")
    assert (codes(result[0]), result[0].stages) == ([250, 250], ("dot", "dot"))
    assert (result[0].sent_dot, result[0].lost, result[0].stale, result[0].unchunked) == (True, None, False, False)
    assert server.client.usable and len(writes) == 1


@pytest.mark.parametrize(
    ("ehlo", "wanted", "size"),
    [
        (CHUNKING, False, len(BODY)),
        (PIPELINING, True, len(BODY)),
        (("250-mx", "250 CHUNKING"), True, len(BODY)),
        (CHUNKING, True, 0),
    ],
    ids=["not wanted", "not offered", "no pipelining", "size not known"],
)
def test_data_is_used_otherwise(ehlo: tuple[str, ...], wanted: bool, size: int) -> None:
    server = ready(ehlo=ehlo)
    result = server.deliver(chunking=wanted, size=size)
    for _ in range(3):
        assert b"BDAT" not in server.received()
        server.reply("354 go" if server.wire.value().endswith(b"DATA\r\n") else OK)
        if result:
            break
    assert b"BDAT" not in server.received()


def test_a_missing_last_line_end_is_not_added() -> None:
    server = open_()
    server.deliver(chunking=True, body=b"Subject: x\r\n\r\nend")
    assert server.received().endswith(b"\r\nBDAT 17 LAST\r\nSubject: x\r\n\r\nend")


def test_many_messages() -> None:
    server = open_()
    for _ in range(3):
        result = server.deliver(chunking=True)
        assert server.received().startswith(b"MAIL")
        server.reply(OK, OK, OK)
        assert codes(result[0]) == [250]


def test_the_transcript() -> None:
    server = open_()
    result = server.deliver(chunking=True)
    server.advance(0.25).reply("250 2.1.0 ok", "250 2.1.5 ok").advance(0.5).reply("250 2.0.0 as 7")
    assert result[0].transcript.splitlines()[-7:] == [
        f"C: MAIL FROM:<b@example.net> SIZE={len(BODY)}",
        "C: RCPT TO:<to@example.org>",
        f"C: BDAT {len(BODY)} LAST",
        "C: (message)",
        "S: 250 2.1.0 ok  [0.250 s]",
        "S: 250 2.1.5 ok  [0.250 s]",
        "S: 250 2.0.0 as 7  [0.750 s]",
    ]
    assert "Subject" not in result[0].transcript


# The message waits for the replies


def test_a_large_message_waits_for_the_recipients() -> None:
    server = open_()
    size = sum(map(len, LARGE))
    result = server.deliver("a@example.org", "b@example.org", body=LARGE, chunking=True)
    assert server.received() == (COMMANDS % (size, size)).rpartition(b"BDAT")[0]
    assert server.reply(OK, "550 5.1.1 no").received() == b""
    assert server.reply(OK).received() == b"BDAT %d LAST\r\n" % size + b"".join(LARGE)
    server.reply(OK)
    assert (codes(result[0]), result[0].stages) == ([550, 250], ("rcpt", "dot"))


def test_a_large_message_without_recipients_is_not_sent() -> None:
    server = open_()
    result = sent(server, body=LARGE)
    server.reply(OK, "550 5.1.1 no", "450 4.2.1 later")
    assert codes(result[0]) == [550, 450]
    assert server.received() == b"" and not result[0].sent_dot
    assert server.client.usable


@pytest.mark.parametrize(("size", "together"), [(SLICE, True), (SLICE + 1, False)])
def test_the_size_of_a_large_message(size: int, together: bool) -> None:
    server = open_()
    server.deliver(body=[b"x" * (size - 2), b"\r\n"], chunking=True)
    assert (b"BDAT" in server.received()) is together


def test_after_a_refused_mail_the_message_waits_for_replies() -> None:
    """Its memory of that one is ended, and what a server says that read a refused chunk for commands is no reply to the next."""
    server = open_()
    result = sent(server)
    server.reply("550 5.7.1 no", "503 no", "503 no", "503 no")
    assert codes(result[0]) == [550, 550]
    result = server.deliver(chunking=True)
    assert server.received() == b"RSET\r\nMAIL FROM:<b@example.net> SIZE=%d\r\nRCPT TO:<to@example.org>\r\n" % len(BODY)
    server.reply("500 5.5.2 what?")
    assert result[0].stale and codes(result[0]) == [None]
    assert server.wire.aborted


def test_after_a_silence_the_message_waits_for_replies() -> None:
    server = open_().advance(11)
    result = server.deliver(chunking=True)
    assert b"BDAT" not in server.received()
    assert server.reply(OK, OK).received() == b"BDAT %d LAST\r\n" % len(BODY) + BODY
    server.reply(OK)
    assert codes(result[0]) == [250]


def test_mode_bdat_waits_for_replies_also_with_small_messages() -> None:
    server = open_()
    result = results_of(server.client.deliver(Envelope("b@example.net", ("a@example.org",), len(BODY)), [BODY], lambda: True, "bdat"))
    assert b"BDAT" not in server.received()
    assert server.reply(OK, OK).received() == b"BDAT %d LAST\r\n" % len(BODY) + BODY
    server.reply(OK)
    assert codes(result[0]) == [250]


def test_the_message_is_sent_with_the_last_group_of_recipients() -> None:
    server = open_()
    result = server.deliver(*(f"{'x' * 50}{number}@example.org" for number in range(1000)), chunking=True)
    groups = 0
    while not result:
        received = server.received()
        groups += 1
        commands, _, body = received.partition(b" LAST\r\n")
        assert 0 < len(commands) <= 16384
        server.reply(*[OK] * (commands.count(b"\r\n") + (1 if body else 0)))
    assert groups == 5 and body == BODY
    assert codes(result[0]) == [250] * 1000


# Whole conversations: the server's replies, then verdicts, whether it may have the message, whether the connection is good.

TALKS = {
    "fine": ("250 ok|250 ok|250 ok|250 2.0.0 queued", [250, 250], True, True),
    "several lines": ("250-2.1.0 a|250 2.1.0 b|250 ok|250 ok|250-2.0.0 queued|250 2.0.0 as 7", [250, 250], True, True),
    "one refused": ("250 ok|550-5.1.1 no|550 5.1.1 such user|250 ok|250 ok", [550, 250], True, True),
    "all refused": ("250 ok|550 no|450 later|503 no", [550, 450], True, True),
    "all refused, 554": ("250 ok|550 no|450 later|554 no valid recipients", [550, 450], True, True),
    "all refused, message taken": ("250 ok|550 no|450 later|250 ok", [550, 450], True, True),
    "all refused, 421": ("250 ok|550 no|450 later|421 bye", [550, 450], True, False),
    "all refused, BDAT unknown": ("250 ok|550 no|450 later|500 what?", [550, 450], False, False),
    "sender refused": ("550 no|503 no|503 no|503 no", [550, 550], True, True),
    "sender refused, 421": ("550 no|503 no|503 no|421 bye", [550, 550], True, False),
    "sender refused, recipients taken": ("550 no|250 ok|250 ok|503 no", [550, 550], True, True),
    "sender refused, message taken": ("550 no|250 ok|250 ok|250 ok", [550, 550], True, False),
    "sender refused, message taken for nobody": ("550 no|503 no|503 no|250 ok", [550, 550], True, True),
    "421 to MAIL": ("421 bye", [421, 421], True, False),
    "421 to RCPT": ("250 ok|550 no|421 bye", [550, 421], True, False),
    "421 to BDAT": ("250 ok|250 ok|550 no|421 bye", [421, 550], True, False),
    "354 to MAIL": ("354 go|250 ok", [None, None], True, False),
    "354 to RCPT": ("250 ok|354 go|250 ok", [None, None], True, False),
    "354 to BDAT": ("250 ok|250 ok|550 no|334 go", [None, 550], True, False),
    "354 to BDAT, then accepted": ("250 ok|250 ok|550 no|354 go|250 ok", [250, 550], True, True),
    "354 to BDAT, then refused": ("250 ok|250 ok|550 no|354 go|554 no", [554, 550], True, True),
    "354 to BDAT, then 421": ("250 ok|250 ok|550 no|354 go|421 bye", [421, 550], True, False),
    "354 to BDAT twice": ("250 ok|250 ok|550 no|354 go|354 go", [None, 550], True, False),
    "354 to BDAT for nobody": ("250 ok|550 no|550 no|354 go", [550, 550], True, False),
    "refused": ("250 ok|550 no|250 ok|554 5.7.1 spam", [550, 554], True, True),
    "deferred": ("250 ok|550 no|250 ok|451 4.3.0 later", [550, 451], True, True),
    "BDAT unknown": ("250 ok|550 no|250 ok|500 5.5.1 unknown", [550, None], False, False),
    "BDAT not implemented": ("250 ok|250 ok|250 ok|502 5.5.1 not implemented", [None, None], False, False),
    "BDAT out of order": ("250 ok|250 ok|250 ok|503 5.5.1 DATA expected", [None, None], False, False),
    "other codes in one reply": ("250 ok|250-ok|550 no", [None, None], True, False),
    "no reply": ("250 ok|what?", [None, None], True, False),
    "unasked after the end": ("250 ok|250 ok|250 ok|250 ok|250 what?", [250, 250], True, False),
}


def converse(name: str, cuts: list[int]) -> tuple[Result, bytes, bool, bool]:
    server = open_(cuts=cuts)
    result = sent(server)
    server.send("".join(f"{line}\r\n" for line in TALKS[name][0].split("|")).encode())
    assert len(result) == 1
    return result[0], server.received(), server.client.usable, server.wire.aborted


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("cuts", [[], [1], [7, 3]])
def test_conversations(name: str, cuts: list[int]) -> None:
    _, verdicts, sent_dot, usable = TALKS[name]
    result, written, usable_after, aborted = converse(name, cuts)
    assert (codes(result), result.sent_dot, usable_after) == (verdicts, sent_dot, usable)
    assert aborted is not usable and written == b""
    assert result.lost is not None or None not in verdicts


@given(st.sampled_from(sorted(TALKS)), st.lists(st.integers(1, 20), min_size=1, max_size=6))
@settings(max_examples=200)
def test_the_result_is_the_same_in_any_segments(name: str, cuts: list[int]) -> None:
    assert converse(name, cuts) == converse(name, [])


@given(st.lists(st.binary(max_size=30), max_size=6))
@settings(max_examples=200)
def test_no_reply_makes_the_client_raise(chunks: list[bytes]) -> None:
    server = open_()
    result = server.deliver(chunking=True)
    for chunk in chunks:
        server.send(chunk.replace(b"\xff", b"\r\n"))
    server.close()
    assert len(result) == 1 and not server.clock.getDelayedCalls()
    assert server.received().endswith(BODY), "nothing is sent after it"


# Where BDAT is offered and not known


@pytest.mark.parametrize("reply", ["500 5.5.1 unknown", "501 no", "502 5.5.1 not implemented", "503 5.5.1 bad sequence", "504 no"])
@pytest.mark.parametrize("body", [BODY, LARGE])
def test_a_server_that_does_not_know_bdat(reply: str, body) -> None:
    server = open_()
    result = sent(server, body=body)
    server.reply(OK, OK, OK)
    server.received()
    server.reply(reply)
    assert codes(result[0]) == [None, None]
    assert (result[0].stale, result[0].unchunked, result[0].sent_dot, result[0].final) == (True, True, False, None)
    assert server.wire.aborted, "it may be reading the message for commands"


def test_the_same_while_the_message_is_written() -> None:
    server = open_()
    result = sent(server, body=LARGE)
    server.stop_reading().reply(OK, OK, "550 no")
    assert server.wire.producer is not None
    server.reply("502 5.5.1 not implemented")
    assert (codes(result[0]), result[0].stale, result[0].unchunked) == ([None, 550], True, True)


def test_no_reply_to_bdat_marks_the_host_as_unchunked() -> None:
    server = open_()
    result = sent(server)
    server.reply(OK, OK, OK).advance(601)
    assert (result[0].sent_dot, result[0].final, result[0].unchunked, result[0].stale) == (True, None, True, False)
    assert codes(result[0]) == [None, None]


# 421 and lost connections, at each step

STEPS = [
    # replies before, stage, verdicts of a, b and c when 421 comes then
    ([], "mail", [421, 421, 421]),
    (["250 ok"], "rcpt", [421, 421, 421]),
    (["250 ok", "550 no"], "rcpt", [550, 421, 421]),
    (["250 ok", "550 no", "250 ok"], "rcpt", [550, 421, 421]),
    (["250 ok", "550 no", "250 ok", "250 ok"], "dot", [550, 421, 421]),
]


@pytest.mark.parametrize(("before", "stage", "verdicts"), STEPS)
def test_421_at_each_step(before: list[str], stage: str, verdicts: list[int]) -> None:
    server = open_()
    result = sent(server, "a@example.org", "b@example.org", "c@example.org")
    server.reply(*before).reply("421 4.3.2 leaving")
    assert codes(result[0]) == verdicts
    assert {stage_ for stage_, code in zip(result[0].stages, verdicts, strict=True) if code == 421} == {stage}
    assert result[0].lost is None and not result[0].stale
    assert server.wire.aborted and not server.client.usable


@pytest.mark.parametrize(("before", "stage", "verdicts"), STEPS)
@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("error", [ConnectionDone(), ConnectionLost("reset by server")])
def test_lost_at_each_step_is_uncertain(before: list[str], stage: str, verdicts: list[int], reused: bool, error: Exception) -> None:
    """RFC 1047: the server may have it, whatever of its replies got lost; so nothing is tried again at once."""
    server = open_()
    if reused:
        sent(server, "first@example.org")
        server.reply(OK, OK, OK)
    result = sent(server, "a@example.org", "b@example.org", "c@example.org")
    server.reply(*before).close(error)
    assert codes(result[0]) == [None if code == 421 else code for code in verdicts]
    assert (result[0].sent_dot, result[0].final, result[0].stale) == (True, None, False)
    assert result[0].lost
    assert not server.clock.getDelayedCalls()


@pytest.mark.parametrize(("before", "stage", "verdicts"), STEPS[:4])
def test_lost_before_the_message_was_sent_is_not_uncertain(before: list[str], stage: str, verdicts: list[int]) -> None:
    server = open_()
    result = sent(server, "a@example.org", "b@example.org", "c@example.org", body=LARGE)
    server.reply(*before).close(ConnectionLost("reset by server"))
    assert (result[0].sent_dot, result[0].stale, result[0].unchunked) == (False, False, False)


@pytest.mark.parametrize("reply", ["421 4.4.2 idle too long", "503 5.5.1 Sender already specified"])
def test_a_mail_on_a_stale_connection_can_be_retried(reply: str) -> None:
    server = open_()
    sent(server)
    server.reply(OK, OK, OK, OK)
    result = sent(server)
    server.reply(reply)
    assert result[0].stale and not result[0].unchunked
    assert reply.startswith("421") or not result[0].sent_dot
    assert server.wire.aborted


# Permission, faults


@pytest.mark.parametrize("body", [BODY, LARGE])
def test_without_permission_the_message_stays_incomplete(body) -> None:
    server = open_()
    checks: list[None] = []
    result = server.deliver("a@example.org", "b@example.org", body=body, chunking=True, may_send_dot=lambda: bool(checks.append(None)))
    server.reply(OK, OK, OK)
    written = server.received()
    assert len(checks) == 1 and server.wire.aborted
    assert written == b"" or len(written.partition(b" LAST\r\n")[2]) < sum(map(len, LARGE))
    assert (result[0].sent_dot, result[0].final, codes(result[0])) == (False, None, [None, None])
    assert "withheld" in result[0].lost


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1, SLICE + 1])
def test_a_message_of_another_size_stays_incomplete(size: int) -> None:
    server = open_()
    result = server.deliver(chunking=True, size=size)
    server.reply(OK, OK)
    assert isinstance(result[0], ValueError)
    assert server.wire.aborted
    assert len(server.received().partition(b" LAST\r\n")[2]) < size


@pytest.mark.parametrize("fault", ["pieces", "permission"])
def test_an_exception_of_the_caller_closes_the_connection_and_is_raised(fault: str) -> None:
    def pieces():
        yield b"x\r\n"
        if fault == "pieces":
            raise KeyError("gone")

    def permission() -> bool:
        raise KeyError("gone")

    server = open_()
    result = server.deliver(body=pieces(), size=3, chunking=True, may_send_dot=permission if fault == "permission" else None)
    assert isinstance(result[0], KeyError)
    assert server.wire.aborted and server.received() == b""


@pytest.mark.parametrize("body", [b"a\nb\r\n", b"a\r", [b"a\r", b"b\r\n"], [b"x" * 200_000, b"\n.\n"]])
def test_a_message_with_a_bare_line_end_is_not_sent(body) -> None:
    server = open_()
    result = server.deliver("a@example.org", "b@example.org", body=body, chunking=True)
    server.reply(OK, OK, OK)
    assert [str(reply)[:5] for reply in result[0].recipients] == ["554 5"] * 2
    assert result[0].stages == ("ours", "ours") and not result[0].sent_dot
    assert server.wire.aborted
    assert b"\n.\n" not in server.received()


# Time


@pytest.mark.parametrize(("before", "seconds", "what"), [(0, 300, "MAIL"), (1, 300, "RCPT"), (2, 300, "RCPT"), (3, 600, "message")])
@pytest.mark.parametrize("body", [BODY, LARGE])
def test_waiting_for_each_reply(before: int, seconds: float, what: str, body) -> None:
    """5321 §4.5.3.2: the reply to BDAT has the time of the one to the final dot.

    A server that has the message may hold the other replies back until then (2920 §3.2).
    """
    if body is BODY:
        seconds = 600
    server = open_()
    result = sent(server, body=body)
    for _ in range(before):
        server.advance(1).reply(OK)
    server.advance(seconds - 0.5)
    assert not result
    server.advance(1)
    assert what in result[0].lost and server.wire.aborted
    assert result[0].sent_dot is (body is BODY or what == "message")


def test_a_server_that_reads_nothing() -> None:
    server = open_()
    result = sent(server, body=LARGE)
    server.stop_reading().reply(OK, OK, OK).advance(181)
    assert "timed out" in result[0].lost and not result[0].sent_dot


def test_one_timer_for_many_messages() -> None:
    server = open_()
    created: list[tuple] = []
    real = server.clock.callLater
    server.clock.callLater = lambda *args: (created.append(args), real(*args))[1]  # type: ignore[method-assign]
    for _ in range(100):
        sent(server, "a@example.org")
        server.reply(OK, OK, OK).advance(0.01)
    assert len(created) <= 1


def test_the_timeout_of_a_message_ends_with_its_last_byte() -> None:
    server = open_(timeouts=Timeouts(message=10))
    result = sent(server)
    server.reply(OK, OK, OK).advance(599)
    assert not result
    server.reply(OK)
    assert codes(result[0]) == [250, 250]


# The bytes


@given(st.binary(max_size=300), st.lists(st.integers(1, 70_000), min_size=1, max_size=5), st.data())
@settings(max_examples=50)
def test_the_bytes_are_the_same_in_any_pieces_and_with_any_pauses(text: bytes, sizes: list[int], data) -> None:
    lines = text.replace(b"\r", b"").replace(b"\n", b"\r\n.") * 300 + b"\r\n"
    pieces, at = [], 0
    while at < len(lines):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(lines[at : at + size])
        at += size
    server = open_()
    real_write = server.wire.write

    def write(content: bytes) -> None:
        real_write(content)
        if server.wire.producer and data.draw(st.booleans()):
            server.wire.producer.pauseProducing()

    server.wire.write = write  # type: ignore[method-assign]
    server.deliver(body=pieces, chunking=True, size=len(lines))
    server.reply(OK, OK)
    while server.wire.producer:
        server.wire.producer.resumeProducing()
    assert server.received().partition(b"BDAT %d LAST\r\n" % len(lines))[2] == lines


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b".", b"a"]), max_size=12).map(b"".join), st.lists(st.integers(0, 12), max_size=5))
@settings(max_examples=200)
def test_a_chunk_is_the_message_or_a_bare_line_end(body: bytes, at: list[int]) -> None:
    cuts = [0, *sorted(min(cut, len(body)) for cut in at), len(body)]
    chunk = BdatCoding(len(body))
    bare = body.replace(b"\r\n", b"")
    try:
        written = b"".join([chunk.feed(body[start:end]) for start, end in pairwise(cuts)]) + chunk.end()
    except BareLineEnd:
        assert b"\r" in bare or b"\n" in bare
    else:
        assert written == body and not (b"\r" in bare or b"\n" in bare)


def test_the_same_message_by_data_is_stuffed() -> None:
    server = open_()
    server.deliver()
    assert server.reply(OK, OK, "354 go").received().endswith(STUFFED)
