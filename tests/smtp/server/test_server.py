"""Server connections: deadlines, limits, back-pressure, TLS, shutdown. What they reply in each situation: tests/conversations."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.protocol import ServerProtocol
from mailsvc.smtp.server.replies import Refused
from mailsvc.smtp.server.session import Limits, Listener, Session
from tests.smtp.dialogue import LISTENERS
from tests.smtp.harness import Client, Recorder, Transport

ENVELOPE = b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n"
HELO = b"HELO me\r\n"


def connect(listener: Listener | str = "open", *, slow: bool = False, clock: Clock | None = None) -> Client:
    client = Client(LISTENERS[listener] if isinstance(listener, str) else listener, clock, slow=slow)
    client.received()
    return client


def codes(data: bytes) -> list[str]:
    return [line[:3] for line in data.decode().splitlines() if line[3:4] != "-"]


def in_data(client: Client) -> Client:
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    assert codes(client.received()) == ["250", "250", "250", "354"]
    return client


# ── the turn ──


def test_a_command_is_read_only_after_the_previous_reply() -> None:
    client = connect(slow=True)
    client.protocol.dataReceived(HELO + ENVELOPE + b"DATA\r\nx\r\n.\r\nNOOP\r\n")
    recorder = client.recorder
    assert recorder is not None
    for calls, wanted in ((["mail"], ["250"]), (["rcpt"], ["250"]), (["body"], ["250"]), (["finish"], ["354"])):
        assert recorder.calls[-1:] == calls
        assert codes(client.received()) == wanted
        client.clock.advance(1)
    assert codes(client.received()) == ["250", "250"]


def test_replies_to_one_segment_are_one_write() -> None:
    client = connect()
    client.transport.writes.clear()
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    assert len(client.transport.writes) == 1


RECORD = b"x" * 998 + b"\r\n"  # of lines that fill a TLS record


@pytest.mark.parametrize("end", ["settle", "half", "lost"])
def test_the_records_of_a_body_are_read_together(end: str) -> None:
    """Also if the client closes the connection right after the last one."""
    client = connect()
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    for _ in range(3):
        client.protocol.dataReceived(RECORD * 10)
    client.protocol.dataReceived(RECORD * 10 + b".\r\n")
    assert client.mails == []
    if end == "half":
        client.protocol.readConnectionLost()
    elif end == "lost":
        client.disconnect()
    else:
        client.settle()
    assert [mail.body for mail in client.mails] == [RECORD * 40]
    if end != "lost":
        assert codes(client.received())[-1] == "250"


def test_a_body_is_read_when_much_has_arrived() -> None:
    client = connect()
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    for _ in range(27):
        client.protocol.dataReceived(RECORD * 10)
    assert len(client.protocol.incoming) < 10_000


def test_reading_pauses_while_a_body_is_written() -> None:
    client = in_data(connect())
    assert client.recorder is not None
    client.recorder.writing = Deferred()
    for _ in range(30):
        client.protocol.dataReceived(RECORD * 10)
        client.clock.advance(0)
        if client.transport.producerState == "paused":
            break
    assert 64 * 1024 < len(client.protocol.incoming) < 80_000
    written, client.recorder.writing = client.recorder.writing, None
    written.callback(None)
    client.send(b".\r\n")
    assert client.transport.producerState == "producing" and len(client.mails) == 1


def test_few_connections_read_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProtocol, "reading_much", 0)
    clients = [in_data(connect()) for _ in range(40)]
    for client in clients:
        for _ in range(7):
            client.protocol.dataReceived(RECORD * 10)
    assert [client.transport.bufferSize for client in clients] == [262_144] * 32 + [65_536] * 8
    for client in clients:
        client.disconnect()
    assert ServerProtocol.reading_much == 0


def test_only_of_a_large_body_much_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProtocol, "reading_much", 0)
    client = connect()
    client.send(HELO)
    for records, much in ((10, False), (70, True), (10, False)):
        client.send(ENVELOPE + b"DATA\r\n")
        for _ in range(records // 10):
            client.protocol.dataReceived(RECORD * 10)
        assert client.transport.bufferSize == (262_144 if much else 65_536)
        client.send(b".\r\n")
        assert client.transport.bufferSize == 65_536


def test_a_flood_of_commands_yields_to_other_connections() -> None:
    client = connect(Listener("mx.test", Limits(non_mail_commands=10_000, unauthenticated_bytes=None)))
    client.protocol.dataReceived(b"NOOP\r\n" * 1000)
    first = len(codes(client.received()))
    assert 0 < first < 150
    client.settle()
    assert len(codes(client.received())) == 1000 - first


COMMANDS = st.sampled_from(
    [
        *(HELO, b"EHLO me\r\n", ENVELOPE, b"MAIL FROM:<down@b.example>\r\n", b"RCPT TO:<unknown@d.example>\r\n", b"RCPT TO:bad\r\n"),
        *(b"RSET\r\n", b"NOOP\r\n", b"FOO\r\n", b"VRFY x\r\n", b"DATA x\r\n", b"AUTH PLAIN\r\n", b"X" * 3000 + b"\r\n"),
        *(b"BDAT 5\r\nQUIT\n", b"BDAT 8 LAST\r\nNOOP\r\n\r\n"),
    ]
)
TALK = st.lists(COMMANDS, max_size=15)


@settings(max_examples=100, deadline=None)
@given(TALK, st.booleans(), st.data())
def test_one_reply_per_command_in_order_in_any_segments_and_at_any_speed(talk: list[bytes], slow: bool, data: st.DataObject) -> None:
    alone = connect()
    expected: list[str] = []
    for command in talk:
        alone.send(command)
        received = codes(alone.received())
        assert len(received) == command.count(b"\r\n") if command.startswith((b"MAIL", b"RCPT")) else len(received) == 1
        expected += received
    content = b"".join(talk)
    places = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    together = connect(slow=slow)
    for a, b in zip([0, *places], [*places, len(content)], strict=True):
        if content[a:b]:
            together.protocol.dataReceived(content[a:b])
    together.settle()
    assert codes(together.received()) == expected
    assert [mail.body for mail in together.mails] == [mail.body for mail in alone.mails]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(COMMANDS, st.binary(max_size=40), st.binary(max_size=40).map(lambda junk: b"MAIL FROM:<" + junk + b">\r\n")), max_size=20
    )
)
def test_random_bytes_get_replies_only(talk: list[bytes]) -> None:
    client = connect()
    client.send(b"".join(talk))
    assert all(code[0] in "2345" for code in codes(client.received()))
    client.disconnect()
    assert client.recorder is not None
    assert client.recorder.closed_times == 1
    assert not client.clock.getDelayedCalls()


# ── deadlines ──


def test_an_idle_client_gets_a_421() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    client.send(HELO)
    client.clock.advance(299)
    assert not client.closed
    client.received()
    client.clock.advance(1)
    assert client.received() == b"421 4.4.2 Idle for too long, closing connection\r\n"
    assert client.closed


def test_the_idle_timeout_is_for_a_whole_line() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    for byte in b"NOOP x":
        client.clock.advance(49)
        client.protocol.dataReceived(bytes([byte]))
    client.clock.advance(10)
    assert client.closed


def test_each_command_has_its_own_timeout() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    for _ in range(5):
        client.clock.advance(299)
        client.protocol.dataReceived(b"NOOP\r\n")
    assert not client.closed
    client.clock.advance(299)
    assert not client.closed
    client.clock.advance(1)
    assert client.closed


def test_an_unauthenticated_client_has_a_minute() -> None:
    client = connect()
    for _ in range(5):
        client.clock.advance(11)
        client.protocol.dataReceived(b"NOOP\r\n")
    assert not client.closed
    client.clock.advance(5)
    assert client.closed


@pytest.mark.parametrize("port", ["open", "submission"])
@pytest.mark.parametrize(
    ("first", "more", "seconds"),
    [
        (b"EHLO me\r\nBDAT 2\r\nx", b"yBDAT 2\r\nx", 295),  # the attack of a minute that lasts 98
        (b"EHLO me\r\nBDAT 2\r\nx", b"yBDAT 2\r\nx", 10),
        (b"EHLO me\r\nBDAT 1000000\r\n", b"x" * 6000, 10),
        (b"EHLO me\r\nBDAT 2\r\nxy", b"NOOP\r\n", 25),
    ],
)
def test_refused_chunks_do_not_extend_the_minute_of_an_unauthenticated_client(port: str, first: bytes, more: bytes, seconds: int) -> None:
    client = connect(port)
    client.protocol.dataReceived(first)
    for _ in range(seconds, 60, seconds):
        client.clock.advance(seconds)
        client.protocol.dataReceived(more)
    client.clock.advance(59.9 - client.clock.seconds())
    assert not client.closed
    client.received()
    client.clock.advance(0.1)
    assert client.received().startswith(b"421 4.4.2 ")
    assert client.closed


def test_the_minute_includes_tls_and_the_dialogue_of_a_login() -> None:
    client = connect("submission")
    for sent in (b"EHLO me\r\n", b"STARTTLS\r\n", b"EHLO me\r\nAUTH LOGIN\r\n", b"bWFpbHN2Yw==\r\n", b"c"):
        client.clock.advance(11)
        client.protocol.dataReceived(sent)
    client.received()
    client.clock.advance(4.9)
    assert not client.closed
    client.clock.advance(0.1)
    assert client.received() == b"421 4.4.2 Idle for too long, closing connection\r\n"


def test_a_login_after_refused_chunks_lifts_the_limits() -> None:
    client = connect("submission")
    client.protocol.dataReceived(b"EHLO me\r\nBDAT 2\r\nxySTARTTLS\r\n")
    client.protocol.dataReceived(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n")
    client.clock.advance(299)
    assert not client.closed


def test_an_unauthenticated_client_may_send_refused_chunks_of_one_message() -> None:
    """It may not have seen yet that they are refused."""
    client = connect(Listener("mx.test", Limits(size=1_000_000)))
    client.send(HELO + (b"BDAT 500000\r\n" + b"x" * 500_000) * 2 + b"NOOP\r\n")
    assert codes(client.received()) == ["250", "503", "503", "250"]
    client.send(b"BDAT 1\r\n")
    assert client.received() == b"421 4.7.0 Too many commands without a message\r\n"
    assert client.closed


def test_a_refused_chunk_above_the_size_limit_is_not_read() -> None:
    client = connect(Listener("mx.test", Limits(size=1000)))
    client.send(HELO + ENVELOPE + b"RSET\r\nBDAT 1000\r\n" + b"x" * 1000 + b"BDAT 1001\r\n")
    assert codes(client.received())[-2:] == ["503", "552"] and client.closed


def test_an_accepted_recipient_lifts_the_limits_for_unauthenticated_clients() -> None:
    client = connect()
    client.protocol.dataReceived(HELO + ENVELOPE)
    client.clock.advance(299)
    assert not client.closed


def test_a_slow_body_times_out() -> None:
    client = in_data(connect())
    for _ in range(30):
        client.clock.advance(10)
        if not client.closed:
            client.protocol.dataReceived(b"x" * 4000 + b"\r\n")
    assert client.received() == b"421 4.4.2 Too slow, closing connection\r\n"
    assert client.recorder is not None
    assert client.recorder.discards == 1


def test_a_body_at_the_minimum_rate_is_accepted() -> None:
    client = in_data(connect())
    for _ in range(300):
        client.clock.advance(10)
        client.protocol.dataReceived((b"x" * 98 + b"\r\n") * 60)
    client.send(b".\r\n")
    assert codes(client.received()) == ["250"]


@pytest.mark.parametrize("command", [b"DATA\r\n", b"BDAT 20000000 LAST\r\n"])
def test_a_fast_body_may_take_longer_than_the_idle_timeout(command: bytes) -> None:
    client = connect()
    client.send(HELO + ENVELOPE + command)
    client.received()
    for _ in range(40):
        client.clock.advance(10)
        client.protocol.dataReceived((b"x" * 98 + b"\r\n") * 5000)
    if command.startswith(b"DATA"):
        client.send(b".\r\n")
    client.settle()
    assert codes(client.received()) == ["250"] and not client.closed
    assert len(client.mails[0].body) == 20_000_000


def test_a_slow_chunk_times_out() -> None:
    client = connect()
    client.send(HELO + ENVELOPE + b"BDAT 20000000 LAST\r\n")
    client.received()
    for _ in range(30):
        client.protocol.dataReceived(b"x" * 4000 + b"\r\n")
        client.clock.advance(10)
    assert client.received() == b"421 4.4.2 Too slow, closing connection\r\n"
    assert client.recorder is not None and client.recorder.discards == 1


def test_a_refused_chunk_has_a_deadline() -> None:
    """However steadily it drips: `idle` seconds, and those that its size takes at the average pace."""
    client = connect(Listener("mx.test", Limits(average=1000)))
    client.send(HELO + ENVELOPE + b"RSET\r\nBDAT 500000\r\n")
    client.received()
    seconds = 0
    while not client.closed and seconds < 1000:
        client.protocol.dataReceived(b"x" * 6000)
        client.clock.advance(10)
        seconds += 10
    assert client.received() == b"421 4.4.2 Too slow, closing connection\r\n"
    assert seconds == 800


@pytest.mark.parametrize("chunks", [False, True])
def test_a_whole_body_has_a_deadline(chunks: bool) -> None:
    """However steadily it drips: `idle` seconds, and those that its announced size takes at the average pace."""
    client = connect(Listener("mx.test", Limits(rate=1, average=1000, idle=60)))
    client.protocol.dataReceived(b"EHLO me\r\n")
    client.protocol.dataReceived(b"MAIL FROM:<a@example.com> SIZE=100000\r\nRCPT TO:<b@example.com>\r\n" + (b"" if chunks else b"DATA\r\n"))
    client.received()
    seconds = 0
    while not client.closed and seconds < 1000:
        if chunks:
            client.protocol.dataReceived(b"BDAT 52\r\n")
        client.protocol.dataReceived(b"x" * 50 + b"\r\n")
        client.clock.advance(5)
        seconds += 5
    assert client.received().endswith(b"421 4.4.2 Too slow, closing connection\r\n")
    assert 160 <= seconds <= 160 + 65


def test_a_deadline_may_be_earlier_than_the_one_before() -> None:
    client = connect(Listener("mx.test", Limits(average=1000, idle=60)))
    client.protocol.dataReceived(b"EHLO me\r\nMAIL FROM:<a@example.com> SIZE=1000\r\nRCPT TO:<b@example.com>\r\nBDAT 2\r\n\r\n")
    client.clock.advance(55)
    client.protocol.dataReceived(b"NOOP\r\n")
    client.clock.advance(5.5)
    client.protocol.dataReceived(b"BDAT 5\r\nx")
    client.received()
    client.clock.advance(0.5)
    assert client.received() == b"421 4.4.2 Too slow, closing connection\r\n"


def test_a_stalled_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    monkeypatch.setattr(client.transport, "startTLS", lambda context: None)
    client.protocol.dataReceived(b"STARTTLS\r\n")
    client.clock.advance(9)
    assert not client.transport.aborted
    client.clock.advance(1)
    assert client.transport.aborted


def test_no_timeout_runs_while_the_server_decides() -> None:
    never: Deferred[None] = Deferred()
    client = in_data(connect())
    assert client.recorder is not None
    client.recorder.wait = lambda: never
    client.protocol.dataReceived(b"x\r\n.\r\n")
    client.clock.advance(1000)
    assert not client.closed
    never.callback(None)
    assert codes(client.received()) == ["250"]


# ── large bodies ──


def test_forty_megabytes_do_not_block_the_reactor() -> None:
    client = in_data(connect())
    block, turns = (b"x" * 76 + b"\r\n") * 840, []
    for _ in range(620):
        began = time.thread_time()
        client.protocol.dataReceived(block)
        turns.append(time.thread_time() - began)
    client.send(b".\r\n")
    assert len(client.mails[0].body) == 620 * len(block) > 40_000_000
    assert sorted(turns)[len(turns) * 99 // 100] < 0.05  # one in a hundred may have been the interpreter's own


# ── back-pressure ──


def test_reading_pauses_while_the_policy_decides() -> None:
    decided: Deferred[None] = Deferred()
    client = connect(Listener("mx.test", Limits(non_mail_commands=100_000, unauthenticated_bytes=None)))
    client.send(HELO)
    assert client.recorder is not None
    client.recorder.wait = lambda: decided
    client.protocol.dataReceived(b"MAIL FROM:<a@b.example>\r\n")
    client.protocol.dataReceived(b"NOOP\r\n" * 10_000)
    assert client.transport.producerState == "producing"
    client.protocol.dataReceived(b"NOOP\r\n" * 2_000)
    assert client.transport.producerState == "paused"
    decided.callback(None)
    client.settle()
    assert client.transport.producerState == "producing"
    assert len(codes(client.received())) == 1 + 1 + 12_000


def test_commands_wait_until_the_client_reads_its_replies() -> None:
    client = connect()
    client.protocol.pauseProducing()
    client.protocol.dataReceived(HELO + ENVELOPE)
    assert client.recorder is not None
    assert client.recorder.calls == []
    client.protocol.resumeProducing()
    assert codes(client.received()) == ["250", "250", "250"]


def test_a_client_that_never_reads_times_out() -> None:
    client = connect()
    client.protocol.pauseProducing()
    client.protocol.dataReceived(HELO)
    client.clock.advance(60)
    assert client.closed
    client.clock.advance(10)
    assert client.transport.aborted


# ── TLS ──


@pytest.mark.parametrize(
    "behind", [b"EHLO a\r\n", b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n", b"EHL", b"\r", b"\x16\x03\x01", b"x" * 1_000_000]
)
def test_data_after_starttls_ends_the_session(behind: bytes) -> None:
    client = connect()
    client.protocol.dataReceived(b"EHLO a\r\n")
    client.received()
    client.protocol.dataReceived(b"STARTTLS\r\n" + behind)
    assert client.received() == b"503 5.5.1 Wait for the reply to STARTTLS before sending more\r\n"
    assert client.closed
    assert not client.transport.tls
    assert client.recorder is not None
    assert client.recorder.calls == []


def test_starttls_ends_the_mail_transaction() -> None:
    client = connect()
    client.send(HELO + ENVELOPE + b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nDATA\r\n")
    assert codes(client.received())[-1] == "503"


def test_the_session_has_its_tls_and_login() -> None:
    client = connect()
    client.send(b"EHLO me\r\n")
    assert client.protocol.session.protocol == "ESMTP"
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n")
    assert client.protocol.session.tls == {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"}
    assert client.protocol.session.protocol == "ESMTPSA"


# ── the end ──


@pytest.mark.parametrize(
    "content", [b"", HELO, HELO + ENVELOPE, HELO + ENVELOPE + b"DATA\r\n", HELO + ENVELOPE + b"DATA\r\nhalf", b"EHLO a\r\nSTARTTLS\r\n"]
)
@pytest.mark.parametrize("also", [b"", HELO + ENVELOPE + b"BDAT 5\r\nhalf"])
def test_a_lost_connection_releases_everything(content: bytes, also: bytes) -> None:
    client = connect()
    client.send(content or also)
    client.disconnect()
    assert client.recorder is not None
    assert client.recorder.closed_times == 1
    assert client.recorder.discards == client.recorder.sinks
    assert client.mails == []
    assert not client.clock.getDelayedCalls()
    assert not client.factory.live


def test_a_complete_mail_is_accepted_if_the_client_disconnects() -> None:
    committed: Deferred[None] = Deferred()
    client = in_data(connect())
    assert client.recorder is not None
    client.recorder.wait = lambda: committed
    client.protocol.dataReceived(b"x\r\n.\r\nMAIL FROM:<a@b.example>\r\n")
    client.disconnect()
    assert client.recorder.closed_times == 0
    committed.callback(None)
    assert len(client.mails) == 1
    assert client.recorder.calls[-1] == "finish"
    assert client.recorder.closed_times == 1


def test_a_half_closed_connection_gets_its_replies() -> None:
    client = connect(slow=True)
    client.protocol.dataReceived(HELO + ENVELOPE + b"DATA\r\nx\r\n.\r\n")
    client.protocol.readConnectionLost()
    client.settle()
    assert codes(client.received()) == ["250", "250", "250", "354", "250"]
    assert client.closed
    assert len(client.mails) == 1


def stop(client: Client) -> list[None]:
    """Shut down; holds something when that is done."""
    stopped: list[None] = []
    Deferred.fromCoroutine(client.factory.stop(30.0)).addCallback(stopped.append)
    return stopped


def test_shutdown_without_sessions_is_immediate() -> None:
    client = connect()
    client.disconnect()
    assert stop(client) == [None]


def test_shutdown_waits_for_commits_of_disconnected_clients() -> None:
    committed: Deferred[None] = Deferred()
    client = in_data(connect())
    assert client.recorder is not None
    client.recorder.wait = lambda: committed
    client.protocol.dataReceived(b"x\r\n.\r\n")
    client.disconnect()
    stopped = stop(client)
    assert stopped == []
    committed.callback(None)
    assert stopped == [None]


def test_shutdown_aborts_sessions_after_a_timeout() -> None:
    client = in_data(connect())
    stop(client)
    client.clock.advance(29)
    assert not client.transport.aborted
    client.clock.advance(1)
    assert client.transport.aborted


def test_shutdown_of_an_idle_session() -> None:
    client = connect()
    stopping = stop(client)
    client.clock.advance(2.9)
    assert client.received() == b""  # it may bring its first mail
    client.clock.advance(0.1)
    assert client.received() == b"421 4.3.2 Server is shutting down\r\n"
    assert client.closed
    assert stopping == []
    client.disconnect()
    assert stopping == [None]
    assert not client.clock.getDelayedCalls()


def test_shutdown_lets_bodies_finish() -> None:
    client = in_data(connect())
    client.send(b"half of ")
    stop(client)
    client.send(b"i")
    assert not client.closed
    client.send(b"t\r\n.\r\nNOOP\r\n")
    assert codes(client.received()) == ["250", "421"]
    assert client.mails[0].body == b"half of it\r\n"


def test_shutdown_lets_decisions_finish() -> None:
    client = connect(slow=True)
    client.send(HELO)
    client.received()
    client.protocol.dataReceived(b"MAIL FROM:<a@b.example>\r\nNOOP\r\n")
    stop(client)
    assert not client.closed
    client.settle()
    assert codes(client.received()) == ["250", "250"]
    client.clock.advance(3)
    assert codes(client.received()) == ["421"]


def test_shutdown_between_two_mails_is_immediate() -> None:
    client = in_data(connect())
    client.send(b"one\r\n.\r\n")
    client.received()
    stop(client)
    assert codes(client.received()) == ["421"] and client.closed


def test_shutdown_accepts_a_first_mail_but_no_second_one() -> None:
    client = connect()
    client.received()
    stop(client)
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    client.send(b"x\r\n.\r\n")
    assert codes(client.received())[-2:] == ["354", "250"] and len(client.mails) == 1 and not client.closed
    client.send(b"MAIL FROM:<a@b.example>\r\n")
    assert codes(client.received()) == ["421"] and client.closed


def test_quit_during_a_shutdown_gets_221() -> None:
    client = connect()
    client.received()
    stop(client)
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    client.send(b"x\r\n.\r\nQUIT\r\n")
    assert codes(client.received())[-2:] == ["250", "221"]


def test_a_session_factory_can_refuse_a_client() -> None:
    client = Client(LISTENERS["open"], open_session=lambda session: Reply(554, "Not you", "5.3.2"))
    assert client.received() == b"554 5.3.2 Not you\r\n"
    assert client.closed
    client.protocol.dataReceived(HELO)
    assert client.received() == b""
    client.disconnect()
    assert not client.clock.getDelayedCalls()


def test_a_client_that_does_not_read_the_last_reply_is_aborted() -> None:
    client = connect()
    client.protocol.dataReceived(b"QUIT\r\n")
    client.clock.advance(9)
    assert not client.transport.aborted
    client.clock.advance(1)
    assert client.transport.aborted


def test_a_421_of_the_policy_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closing(self: Recorder, *_: object) -> Reply:
        return Reply(421, "Too many mails of this key", "4.7.0")

    monkeypatch.setattr(Recorder, "mail", closing)
    client = connect()
    client.send(HELO + ENVELOPE)
    assert codes(client.received()) == ["250", "421"]
    assert client.closed


def test_refused_recipients_of_customers_are_not_errors() -> None:
    client = connect("submission")
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\nMAIL FROM:<a@b.example>\r\n" + b"RCPT TO:<unknown@d.example>\r\n" * 200)
    assert codes(client.received()).count("550") == 200
    assert not client.closed


def test_a_sink_may_refuse_while_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        discards = 0

        def write(self, piece: bytes) -> None:
            raise Refused(Reply(452, "Disk full", "4.3.1"))

        def discard(self) -> None:
            self.discards += 1

    sink = Full()

    async def body(self: Recorder, *_: object) -> Full:
        return sink

    monkeypatch.setattr(Recorder, "body", body)
    client = in_data(connect())
    client.send(b"x\r\ny\r\n.\r\nNOOP\r\n")
    assert codes(client.received()) == ["452", "250"]
    assert sink.discards == 1


def test_the_session_has_its_peer() -> None:
    seen: list[Session] = []

    def welcome(session: Session) -> Reply:
        seen.append(session)
        return replies.SHUTDOWN

    Client(LISTENERS["open"], open_session=welcome)
    assert seen[0].peer.host == "192.168.1.1"


def test_the_peer_of_an_ipv6_socket_may_be_an_ipv4_address(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"::ffff:192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::1", "fe80::1%eth0": "fe80::1%eth0", "": ""}
    seen: list[str] = []

    def welcome(session: Session) -> Reply:
        seen.append(session.peer.host)
        return replies.SHUTDOWN

    for host in hosts:
        monkeypatch.setattr(Transport, "getPeer", lambda self, host=host: IPv6Address("TCP", host, 4000))
        Client(LISTENERS["open"], open_session=welcome)
    assert seen == list(hosts.values())


# ── the transcript ──


def test_the_transcript_has_no_messages_and_no_secrets() -> None:
    client = connect("submission")
    client.send(b"EHLO me\r\n")
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n" + ENVELOPE + b"DATA\r\nSecret words\r\n.\r\nBDAT 3\r\nabcQUIT\r\n")
    transcript = str(client.protocol.session.transcript)
    assert "C: AUTH PLAIN\nS: 235 2.7.0 Authenticated\n" in transcript
    assert "C: RCPT TO:<c@d.example>\nS: 250 2.1.5 Recipient OK\n" in transcript
    assert "C: (message of 14 bytes)\nS: 250 2.0.0 Ok: queued as 1\n" in transcript
    assert transcript.endswith("C: QUIT\nS: 221 2.0.0 Bye")
    for secret in ("AG1haWxz", "s3cret", "Secret words", "abc"):
        assert secret not in transcript


def test_the_transcript_of_a_login_dialogue_has_no_secrets() -> None:
    client = connect()
    client.send(b"STARTTLS\r\n")
    secret = b"PLAIN AG1haWxzdmMAczNjcmV0\r\n"
    client.send(b"EHLO me\r\nAUTH LOGIN bWFpbHN2Yw==\r\nczNjcmV0\r\nauth  " + secret + b"AUTH\t" + secret + secret)
    transcript = str(client.protocol.session.transcript)
    assert "czNjcmV0" not in transcript
    assert "AG1haWxz" not in transcript
    assert "C: (response)" in transcript


@pytest.mark.parametrize("argument", [b"PLAIN\tAG1haWxzdmMAczNjcmV0", b"AG1haWxzdmMAczNjcmV0AG1haWxzdmMAczNjcmV0", b"AG1haWxzdmMA="])
def test_the_transcript_has_no_credentials_instead_of_a_mechanism(argument: bytes) -> None:
    client = connect()
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH " + argument + b"\r\nAUTH XOAUTH2 x\r\n")
    transcript = str(client.protocol.session.transcript)
    assert "C: AUTH\n" in transcript and "C: AUTH XOAUTH2\n" in transcript
    assert "AG1haWxz" not in transcript


def test_the_transcript_is_bounded() -> None:
    client = connect(Listener("mx.test", Limits(non_mail_commands=100_000, unauthenticated_bytes=None)))
    client.send(b"NOOP\r\n" * 5000 + b"NOOP " + b"x" * 2000 + b"\r\nQUIT\r\n")
    lines = str(client.protocol.session.transcript).splitlines()
    assert len(lines) == 501
    assert lines[250].endswith(" commands and replies left out]")
    assert lines[-1] == "S: 221 2.0.0 Bye"
    assert max(map(len, lines)) < 600


def test_importing_the_server_does_not_install_a_reactor() -> None:
    modules = "mailsvc.smtp.server.certificates, mailsvc.sandbox.inbox, mailsvc.smtp.server.listener"
    script = f"import sys, {modules}; print('twisted.internet.reactor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
