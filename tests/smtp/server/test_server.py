"""The connection: deadlines, limits, back-pressure, TLS, the end. What is said in each situation: tests/conversations."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.replies import Refused
from mailsvc.smtp.server.session import Limits, Listener, Session
from tests.smtp.dialogue import LISTENERS
from tests.smtp.harness import Client, Recorder

ENVELOPE = b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n"
HELO = b"HELO me\r\n"


def connect(listener: Listener | str = "open", *, slow: bool = False, clock: Clock | None = None) -> Client:
    client = Client(LISTENERS[listener] if isinstance(listener, str) else listener, clock, slow=slow)
    client.received()
    return client


def codes(heard: bytes) -> list[str]:
    return [line[:3] for line in heard.decode().splitlines() if line[3:4] != "-"]


def in_data(client: Client) -> Client:
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    assert codes(client.received()) == ["250", "250", "250", "354"]
    return client


# ── the turn ──


def test_no_command_is_taken_while_one_is_unanswered() -> None:
    client = connect(slow=True)
    client.protocol.dataReceived(HELO + ENVELOPE + b"DATA\r\nx\r\n.\r\nNOOP\r\n")
    recorder = client.recorder
    assert recorder is not None
    for calls, said in ((["mail"], ["250"]), (["rcpt"], ["250"]), (["body"], ["250"]), (["finish"], ["354"])):
        assert recorder.calls[-1:] == calls
        assert codes(client.received()) == said
        client.clock.advance(1)
    assert codes(client.received()) == ["250", "250"]


def test_replies_of_one_segment_leave_in_one_write() -> None:
    client = connect()
    client.transport.writes.clear()
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    assert len(client.transport.writes) == 1


def test_a_flood_of_commands_lets_others_have_their_turn() -> None:
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
def test_one_reply_per_command_in_order_however_cut_and_however_slow(talk: list[bytes], slow: bool, data: st.DataObject) -> None:
    alone = connect()
    expected: list[str] = []
    for command in talk:
        alone.send(command)
        heard = codes(alone.received())
        assert len(heard) == command.count(b"\r\n") if command.startswith((b"MAIL", b"RCPT")) else len(heard) == 1
        expected += heard
    octets = b"".join(talk)
    places = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=8)))
    together = connect(slow=slow)
    for a, b in zip([0, *places], [*places, len(octets)], strict=True):
        if octets[a:b]:
            together.protocol.dataReceived(octets[a:b])
    together.settle()
    assert codes(together.received()) == expected
    assert [mail.body for mail in together.mails] == [mail.body for mail in alone.mails]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(COMMANDS, st.binary(max_size=40), st.binary(max_size=40).map(lambda junk: b"MAIL FROM:<" + junk + b">\r\n")), max_size=20
    )
)
def test_junk_gets_replies_and_no_more(talk: list[bytes]) -> None:
    client = connect()
    client.send(b"".join(talk))
    assert all(code[0] in "2345" for code in codes(client.received()))
    client.disconnect()
    assert client.recorder is not None
    assert client.recorder.closed_times == 1
    assert not client.clock.getDelayedCalls()


# ── deadlines ──


def test_an_idle_client_is_told_and_closed() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    client.send(HELO)
    client.clock.advance(299)
    assert not client.closed
    client.received()
    client.clock.advance(1)
    assert client.received() == b"421 4.4.2 Idle for too long, closing connection\r\n"
    assert client.closed


def test_the_time_is_for_the_whole_line() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    for octet in b"NOOP x":
        client.clock.advance(49)
        client.protocol.dataReceived(bytes([octet]))
    client.clock.advance(10)
    assert client.closed


def test_each_command_has_its_own_time() -> None:
    client = connect(Listener("mx.test", Limits(unauthenticated_seconds=None)))
    for _ in range(5):
        client.clock.advance(299)
        client.protocol.dataReceived(b"NOOP\r\n")
    assert not client.closed
    client.clock.advance(299)
    assert not client.closed
    client.clock.advance(1)
    assert client.closed


def test_a_stranger_has_a_minute_in_all() -> None:
    client = connect()
    for _ in range(5):
        client.clock.advance(11)
        client.protocol.dataReceived(b"NOOP\r\n")
    assert not client.closed
    client.clock.advance(5)
    assert client.closed


def test_who_had_a_recipient_accepted_is_no_stranger() -> None:
    client = connect()
    client.protocol.dataReceived(HELO + ENVELOPE)
    client.clock.advance(299)
    assert not client.closed


def test_a_slow_body_is_cut_off() -> None:
    client = in_data(connect())
    for _ in range(30):
        client.clock.advance(10)
        if not client.closed:
            client.protocol.dataReceived(b"x" * 4000 + b"\r\n")
    assert client.received() == b"421 4.4.2 Too slow, closing connection\r\n"
    assert client.recorder is not None
    assert client.recorder.discards == 1


def test_a_fast_enough_body_may_take_its_time() -> None:
    client = in_data(connect())
    for _ in range(300):
        client.clock.advance(10)
        client.protocol.dataReceived((b"x" * 98 + b"\r\n") * 60)
    client.send(b".\r\n")
    assert codes(client.received()) == ["250"]


@pytest.mark.parametrize("chunks", [False, True])
def test_a_whole_body_has_to_arrive_in_time(chunks: bool) -> None:
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


def test_a_stalled_handshake_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    monkeypatch.setattr(client.transport, "startTLS", lambda context: None)
    client.protocol.dataReceived(b"STARTTLS\r\n")
    client.clock.advance(9)
    assert not client.transport.aborted
    client.clock.advance(1)
    assert client.transport.aborted


def test_no_deadline_runs_while_the_server_is_the_slow_one() -> None:
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


def test_forty_megabytes_take_no_long_turn() -> None:
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


def test_reading_stops_while_a_decision_is_awaited() -> None:
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


def test_no_command_is_taken_of_who_does_not_read() -> None:
    client = connect()
    client.protocol.pauseProducing()
    client.protocol.dataReceived(HELO + ENVELOPE)
    assert client.recorder is not None
    assert client.recorder.calls == []
    client.protocol.resumeProducing()
    assert codes(client.received()) == ["250", "250", "250"]


def test_who_never_reads_is_cut_off() -> None:
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
def test_nothing_may_stand_behind_starttls(behind: bytes) -> None:
    client = connect()
    client.protocol.dataReceived(b"EHLO a\r\n")
    client.received()
    client.protocol.dataReceived(b"STARTTLS\r\n" + behind)
    assert client.received() == b"503 5.5.1 Wait for the reply to STARTTLS before sending more\r\n"
    assert client.closed
    assert not client.transport.tls
    assert client.recorder is not None
    assert client.recorder.calls == []


def test_tls_forgets_the_mail_that_was_begun() -> None:
    client = connect()
    client.send(HELO + ENVELOPE + b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nDATA\r\n")
    assert codes(client.received())[-1] == "503"


def test_the_session_knows_its_tls_and_login() -> None:
    client = connect()
    client.send(b"EHLO me\r\n")
    assert client.protocol.session.protocol == "ESMTP"
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n")
    assert client.protocol.session.tls == {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"}
    assert client.protocol.session.protocol == "ESMTPSA"


# ── the end ──


@pytest.mark.parametrize(
    "octets", [b"", HELO, HELO + ENVELOPE, HELO + ENVELOPE + b"DATA\r\n", HELO + ENVELOPE + b"DATA\r\nhalf", b"EHLO a\r\nSTARTTLS\r\n"]
)
@pytest.mark.parametrize("also", [b"", HELO + ENVELOPE + b"BDAT 5\r\nhalf"])
def test_a_lost_connection_leaves_nothing(octets: bytes, also: bytes) -> None:
    client = connect()
    client.send(octets or also)
    client.disconnect()
    assert client.recorder is not None
    assert client.recorder.closed_times == 1
    assert client.recorder.discards == client.recorder.sinks
    assert client.mails == []
    assert not client.clock.getDelayedCalls()
    assert not client.factory.live


def test_a_mail_is_kept_when_its_sender_leaves_before_the_reply() -> None:
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


def test_a_client_that_only_stops_talking_is_answered() -> None:
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


def test_shutdown_with_nobody_there_is_at_once() -> None:
    client = connect()
    client.disconnect()
    assert stop(client) == [None]


def test_shutdown_waits_for_a_commit_whose_client_has_left() -> None:
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


def test_shutdown_is_patient_but_not_for_ever() -> None:
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


def test_shutdown_lets_a_body_finish() -> None:
    client = in_data(connect())
    client.send(b"half of ")
    stop(client)
    client.send(b"i")
    assert not client.closed
    client.send(b"t\r\n.\r\nNOOP\r\n")
    assert codes(client.received()) == ["250", "421"]
    assert client.mails[0].body == b"half of it\r\n"


def test_shutdown_lets_a_decision_finish() -> None:
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


def test_shutdown_between_two_mails_is_at_once() -> None:
    client = in_data(connect())
    client.send(b"one\r\n.\r\n")
    client.received()
    stop(client)
    assert codes(client.received()) == ["421"] and client.closed


def test_a_first_mail_is_taken_during_a_shutdown_and_no_second_one() -> None:
    client = connect()
    client.received()
    stop(client)
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    client.send(b"x\r\n.\r\n")
    assert codes(client.received())[-2:] == ["354", "250"] and len(client.mails) == 1 and not client.closed
    client.send(b"MAIL FROM:<a@b.example>\r\n")
    assert codes(client.received()) == ["421"] and client.closed


def test_who_quits_during_a_shutdown_is_told_goodbye() -> None:
    client = connect()
    client.received()
    stop(client)
    client.send(HELO + ENVELOPE + b"DATA\r\n")
    client.send(b"x\r\n.\r\nQUIT\r\n")
    assert codes(client.received())[-2:] == ["250", "221"]


def test_a_port_can_turn_a_client_away() -> None:
    client = Client(LISTENERS["open"], open_session=lambda session: Reply(554, "Not you", "5.3.2"))
    assert client.received() == b"554 5.3.2 Not you\r\n"
    assert client.closed
    client.protocol.dataReceived(HELO)
    assert client.received() == b""
    client.disconnect()
    assert not client.clock.getDelayedCalls()


def test_who_does_not_take_the_last_reply_is_cut_off() -> None:
    client = connect()
    client.protocol.dataReceived(b"QUIT\r\n")
    client.clock.advance(9)
    assert not client.transport.aborted
    client.clock.advance(1)
    assert client.transport.aborted


def test_a_421_of_the_reception_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closing(self: Recorder, *_: object) -> Reply:
        return Reply(421, "Too many mails of this key", "4.7.0")

    monkeypatch.setattr(Recorder, "mail", closing)
    client = connect()
    client.send(HELO + ENVELOPE)
    assert codes(client.received()) == ["250", "421"]
    assert client.closed


def test_bad_recipients_of_a_customer_are_no_errors() -> None:
    client = connect("submission")
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\nMAIL FROM:<a@b.example>\r\n" + b"RCPT TO:<unknown@d.example>\r\n" * 200)
    assert codes(client.received()).count("550") == 200
    assert not client.closed


def test_a_sink_may_refuse_while_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_peer_is_known() -> None:
    seen: list[Session] = []

    def welcome(session: Session) -> Reply:
        seen.append(session)
        return replies.SHUTDOWN

    Client(LISTENERS["open"], open_session=welcome)
    assert seen[0].peer.host == "192.168.1.1"


# ── the transcript ──


def test_the_transcript_has_no_bodies_and_no_secrets() -> None:
    client = connect("submission")
    client.send(b"EHLO me\r\n")
    client.send(b"STARTTLS\r\n")
    client.send(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n" + ENVELOPE + b"DATA\r\nSecret words\r\n.\r\nBDAT 3\r\nabcQUIT\r\n")
    transcript = str(client.protocol.session.transcript)
    assert "C: AUTH PLAIN\nS: 235 2.7.0 Authenticated\n" in transcript
    assert "C: RCPT TO:<c@d.example>\nS: 250 2.1.5 Recipient OK\n" in transcript
    assert "C: (message of 14 bytes)\nS: 250 2.0.0 Queued as 1\n" in transcript
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


def test_the_transcript_is_bounded() -> None:
    client = connect(Listener("mx.test", Limits(non_mail_commands=100_000, unauthenticated_bytes=None)))
    client.send(b"NOOP\r\n" * 5000 + b"NOOP " + b"x" * 2000 + b"\r\nQUIT\r\n")
    lines = str(client.protocol.session.transcript).splitlines()
    assert len(lines) == 501
    assert lines[250].endswith(" commands and replies left out]")
    assert lines[-1] == "S: 221 2.0.0 Bye"
    assert max(map(len, lines)) < 600


def test_importing_the_server_picks_no_reactor() -> None:
    modules = "mailsvc.smtp.server.certificates, mailsvc.sandbox.inbox, mailsvc.smtp.server.listener"
    script = f"import sys, {modules}; print('twisted.internet.reactor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
