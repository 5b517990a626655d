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
from tests.smtp.harness import Call, Recorder

ENVELOPE = b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n"
HELO = b"HELO me\r\n"


def call(listener: Listener | str = "open", *, slow: bool = False, clock: Clock | None = None) -> Call:
    made = Call(LISTENERS[listener] if isinstance(listener, str) else listener, clock, slow=slow)
    made.heard()
    return made


def codes(heard: bytes) -> list[str]:
    return [line[:3] for line in heard.decode().splitlines() if line[3:4] != "-"]


def in_data(made: Call) -> Call:
    made.say(HELO + ENVELOPE + b"DATA\r\n")
    assert codes(made.heard()) == ["250", "250", "250", "354"]
    return made


# ── the turn ──


def test_no_command_is_taken_while_one_is_unanswered() -> None:
    made = call(slow=True)
    made.receiver.dataReceived(HELO + ENVELOPE + b"DATA\r\nx\r\n.\r\nNOOP\r\n")
    recorder = made.recorder
    assert recorder is not None
    for calls, said in ((["mail"], ["250"]), (["rcpt"], ["250"]), (["body"], ["250"]), (["finish"], ["354"])):
        assert recorder.calls[-1:] == calls
        assert codes(made.heard()) == said
        made.clock.advance(1)
    assert codes(made.heard()) == ["250", "250"]


def test_replies_of_one_segment_leave_in_one_write() -> None:
    made = call()
    made.transport.writes.clear()
    made.say(HELO + ENVELOPE + b"DATA\r\n")
    assert len(made.transport.writes) == 1


def test_a_flood_of_commands_lets_others_have_their_turn() -> None:
    made = call(Listener("mx.test", Limits(chatter=10_000, stranger_octets=None)))
    made.receiver.dataReceived(b"NOOP\r\n" * 1000)
    first = len(codes(made.heard()))
    assert 0 < first < 150
    made.settle()
    assert len(codes(made.heard())) == 1000 - first


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
    alone = call()
    expected: list[str] = []
    for command in talk:
        alone.say(command)
        heard = codes(alone.heard())
        assert len(heard) == command.count(b"\r\n") if command.startswith((b"MAIL", b"RCPT")) else len(heard) == 1
        expected += heard
    octets = b"".join(talk)
    places = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=8)))
    together = call(slow=slow)
    for a, b in zip([0, *places], [*places, len(octets)], strict=True):
        if octets[a:b]:
            together.receiver.dataReceived(octets[a:b])
    together.settle()
    assert codes(together.heard()) == expected
    assert [mail.body for mail in together.mails] == [mail.body for mail in alone.mails]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(COMMANDS, st.binary(max_size=40), st.binary(max_size=40).map(lambda junk: b"MAIL FROM:<" + junk + b">\r\n")), max_size=20
    )
)
def test_junk_gets_replies_and_no_more(talk: list[bytes]) -> None:
    made = call()
    made.say(b"".join(talk))
    assert all(code[0] in "2345" for code in codes(made.heard()))
    made.hang_up()
    assert made.recorder is not None
    assert made.recorder.dropped_times == 1
    assert not made.clock.getDelayedCalls()


# ── deadlines ──


def test_an_idle_client_is_told_and_closed() -> None:
    made = call(Listener("mx.test", Limits(stranger_seconds=None)))
    made.say(HELO)
    made.clock.advance(299)
    assert not made.closed
    made.heard()
    made.clock.advance(1)
    assert made.heard() == b"421 4.4.2 Idle for too long, closing\r\n"
    assert made.closed


def test_the_time_is_for_the_whole_line() -> None:
    made = call(Listener("mx.test", Limits(stranger_seconds=None)))
    for octet in b"NOOP x":
        made.clock.advance(49)
        made.receiver.dataReceived(bytes([octet]))
    made.clock.advance(10)
    assert made.closed


def test_each_command_has_its_own_time() -> None:
    made = call(Listener("mx.test", Limits(stranger_seconds=None)))
    for _ in range(5):
        made.clock.advance(299)
        made.receiver.dataReceived(b"NOOP\r\n")
    assert not made.closed
    made.clock.advance(299)
    assert not made.closed
    made.clock.advance(1)
    assert made.closed


def test_a_stranger_has_a_minute_in_all() -> None:
    made = call()
    for _ in range(5):
        made.clock.advance(11)
        made.receiver.dataReceived(b"NOOP\r\n")
    assert not made.closed
    made.clock.advance(5)
    assert made.closed


def test_who_had_a_recipient_accepted_is_no_stranger() -> None:
    made = call()
    made.receiver.dataReceived(HELO + ENVELOPE)
    made.clock.advance(299)
    assert not made.closed


def test_a_slow_body_is_cut_off() -> None:
    made = in_data(call())
    for _ in range(30):
        made.clock.advance(10)
        if not made.closed:
            made.receiver.dataReceived(b"x" * 4000 + b"\r\n")
    assert made.heard() == b"421 4.4.2 Too slow, closing\r\n"
    assert made.recorder is not None
    assert made.recorder.drops == 1


def test_a_fast_enough_body_may_take_its_time() -> None:
    made = in_data(call())
    for _ in range(300):
        made.clock.advance(10)
        made.receiver.dataReceived((b"x" * 98 + b"\r\n") * 60)
    made.say(b".\r\n")
    assert codes(made.heard()) == ["250"]


@pytest.mark.parametrize("chunks", [False, True])
def test_a_whole_body_has_to_arrive_in_time(chunks: bool) -> None:
    """However steadily it drips: `idle` seconds, and those that its announced size takes at the average pace."""
    made = call(Listener("mx.test", Limits(rate=1, average=1000, idle=60)))
    made.receiver.dataReceived(b"EHLO me\r\n")
    made.receiver.dataReceived(b"MAIL FROM:<a@example.com> SIZE=100000\r\nRCPT TO:<b@example.com>\r\n" + (b"" if chunks else b"DATA\r\n"))
    made.heard()
    seconds = 0
    while not made.closed and seconds < 1000:
        if chunks:
            made.receiver.dataReceived(b"BDAT 52\r\n")
        made.receiver.dataReceived(b"x" * 50 + b"\r\n")
        made.clock.advance(5)
        seconds += 5
    assert made.heard().endswith(b"421 4.4.2 Too slow, closing\r\n")
    assert 160 <= seconds <= 160 + 65


def test_a_stalled_handshake_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made = call()
    monkeypatch.setattr(made.transport, "startTLS", lambda context: None)
    made.receiver.dataReceived(b"STARTTLS\r\n")
    made.clock.advance(9)
    assert not made.transport.aborted
    made.clock.advance(1)
    assert made.transport.aborted


def test_no_deadline_runs_while_the_server_is_the_slow_one() -> None:
    never: Deferred[None] = Deferred()
    made = in_data(call())
    assert made.recorder is not None
    made.recorder.wait = lambda: never
    made.receiver.dataReceived(b"x\r\n.\r\n")
    made.clock.advance(1000)
    assert not made.closed
    never.callback(None)
    assert codes(made.heard()) == ["250"]


# ── large bodies ──


def test_forty_megabytes_take_no_long_turn() -> None:
    made = in_data(call())
    block, turns = (b"x" * 76 + b"\r\n") * 840, []
    for _ in range(620):
        began = time.thread_time()
        made.receiver.dataReceived(block)
        turns.append(time.thread_time() - began)
    made.say(b".\r\n")
    assert len(made.mails[0].body) == 620 * len(block) > 40_000_000
    assert sorted(turns)[len(turns) * 99 // 100] < 0.05  # one in a hundred may have been the interpreter's own


# ── back-pressure ──


def test_reading_stops_while_a_decision_is_awaited() -> None:
    decided: Deferred[None] = Deferred()
    made = call(Listener("mx.test", Limits(chatter=100_000, stranger_octets=None)))
    made.say(HELO)
    assert made.recorder is not None
    made.recorder.wait = lambda: decided
    made.receiver.dataReceived(b"MAIL FROM:<a@b.example>\r\n")
    made.receiver.dataReceived(b"NOOP\r\n" * 10_000)
    assert made.transport.producerState == "producing"
    made.receiver.dataReceived(b"NOOP\r\n" * 2_000)
    assert made.transport.producerState == "paused"
    decided.callback(None)
    made.settle()
    assert made.transport.producerState == "producing"
    assert len(codes(made.heard())) == 1 + 1 + 12_000


def test_no_command_is_taken_of_who_does_not_read() -> None:
    made = call()
    made.receiver.pauseProducing()
    made.receiver.dataReceived(HELO + ENVELOPE)
    assert made.recorder is not None
    assert made.recorder.calls == []
    made.receiver.resumeProducing()
    assert codes(made.heard()) == ["250", "250", "250"]


def test_who_never_reads_is_cut_off() -> None:
    made = call()
    made.receiver.pauseProducing()
    made.receiver.dataReceived(HELO)
    made.clock.advance(60)
    assert made.closed
    made.clock.advance(10)
    assert made.transport.aborted


# ── TLS ──


@pytest.mark.parametrize(
    "behind", [b"EHLO a\r\n", b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n", b"EHL", b"\r", b"\x16\x03\x01", b"x" * 1_000_000]
)
def test_nothing_may_stand_behind_starttls(behind: bytes) -> None:
    made = call()
    made.receiver.dataReceived(b"EHLO a\r\n")
    made.heard()
    made.receiver.dataReceived(b"STARTTLS\r\n" + behind)
    assert made.heard() == b"503 5.5.1 Nothing may follow STARTTLS before its reply\r\n"
    assert made.closed
    assert not made.transport.tls
    assert made.recorder is not None
    assert made.recorder.calls == []


def test_tls_forgets_the_mail_that_was_begun() -> None:
    made = call()
    made.say(HELO + ENVELOPE + b"STARTTLS\r\n")
    made.say(b"EHLO me\r\nDATA\r\n")
    assert codes(made.heard())[-1] == "503"


def test_the_session_knows_its_tls_and_login() -> None:
    made = call()
    made.say(b"EHLO me\r\n")
    assert made.receiver.session.protocol == "ESMTP"
    made.say(b"STARTTLS\r\n")
    made.say(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n")
    assert made.receiver.session.tls == {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"}
    assert made.receiver.session.protocol == "ESMTPSA"


# ── the end ──


@pytest.mark.parametrize(
    "octets", [b"", HELO, HELO + ENVELOPE, HELO + ENVELOPE + b"DATA\r\n", HELO + ENVELOPE + b"DATA\r\nhalf", b"EHLO a\r\nSTARTTLS\r\n"]
)
@pytest.mark.parametrize("also", [b"", HELO + ENVELOPE + b"BDAT 5\r\nhalf"])
def test_a_lost_connection_leaves_nothing(octets: bytes, also: bytes) -> None:
    made = call()
    made.say(octets or also)
    made.hang_up()
    assert made.recorder is not None
    assert made.recorder.dropped_times == 1
    assert made.recorder.drops == made.recorder.sinks
    assert made.mails == []
    assert not made.clock.getDelayedCalls()
    assert not made.receivers.live


def test_a_mail_is_kept_when_its_sender_leaves_before_the_reply() -> None:
    committed: Deferred[None] = Deferred()
    made = in_data(call())
    assert made.recorder is not None
    made.recorder.wait = lambda: committed
    made.receiver.dataReceived(b"x\r\n.\r\nMAIL FROM:<a@b.example>\r\n")
    made.hang_up()
    assert made.recorder.dropped_times == 0
    committed.callback(None)
    assert len(made.mails) == 1
    assert made.recorder.calls[-1] == "finish"
    assert made.recorder.dropped_times == 1


def test_a_client_that_only_stops_talking_is_answered() -> None:
    made = call(slow=True)
    made.receiver.dataReceived(HELO + ENVELOPE + b"DATA\r\nx\r\n.\r\n")
    made.receiver.readConnectionLost()
    made.settle()
    assert codes(made.heard()) == ["250", "250", "250", "354", "250"]
    assert made.closed
    assert len(made.mails) == 1


def stop(made: Call) -> list[None]:
    """Shut down; holds something when that is done."""
    stopped: list[None] = []
    Deferred.fromCoroutine(made.receivers.stop(30.0)).addCallback(stopped.append)
    return stopped


def test_shutdown_with_nobody_there_is_at_once() -> None:
    made = call()
    made.hang_up()
    assert stop(made) == [None]


def test_shutdown_waits_for_a_commit_whose_client_has_left() -> None:
    committed: Deferred[None] = Deferred()
    made = in_data(call())
    assert made.recorder is not None
    made.recorder.wait = lambda: committed
    made.receiver.dataReceived(b"x\r\n.\r\n")
    made.hang_up()
    stopped = stop(made)
    assert stopped == []
    committed.callback(None)
    assert stopped == [None]


def test_shutdown_is_patient_but_not_for_ever() -> None:
    made = in_data(call())
    stop(made)
    made.clock.advance(29)
    assert not made.transport.aborted
    made.clock.advance(1)
    assert made.transport.aborted


def test_shutdown_of_an_idle_session() -> None:
    made = call()
    stopping = stop(made)
    made.clock.advance(2.9)
    assert made.heard() == b""  # it may bring its first mail
    made.clock.advance(0.1)
    assert made.heard() == b"421 4.3.2 Shutting down\r\n"
    assert made.closed
    assert stopping == []
    made.hang_up()
    assert stopping == [None]
    assert not made.clock.getDelayedCalls()


def test_shutdown_lets_a_body_finish() -> None:
    made = in_data(call())
    made.say(b"half of ")
    stop(made)
    made.say(b"i")
    assert not made.closed
    made.say(b"t\r\n.\r\nNOOP\r\n")
    assert codes(made.heard()) == ["250", "421"]
    assert made.mails[0].body == b"half of it\r\n"


def test_shutdown_lets_a_decision_finish() -> None:
    made = call(slow=True)
    made.say(HELO)
    made.heard()
    made.receiver.dataReceived(b"MAIL FROM:<a@b.example>\r\nNOOP\r\n")
    stop(made)
    assert not made.closed
    made.settle()
    assert codes(made.heard()) == ["250", "250"]
    made.clock.advance(3)
    assert codes(made.heard()) == ["421"]


def test_shutdown_between_two_mails_is_at_once() -> None:
    made = in_data(call())
    made.say(b"one\r\n.\r\n")
    made.heard()
    stop(made)
    assert codes(made.heard()) == ["421"] and made.closed


def test_a_first_mail_is_taken_during_a_shutdown_and_no_second_one() -> None:
    made = call()
    made.heard()
    stop(made)
    made.say(HELO + ENVELOPE + b"DATA\r\n")
    made.say(b"x\r\n.\r\n")
    assert codes(made.heard())[-2:] == ["354", "250"] and len(made.mails) == 1 and not made.closed
    made.say(b"MAIL FROM:<a@b.example>\r\n")
    assert codes(made.heard()) == ["421"] and made.closed


def test_who_quits_during_a_shutdown_is_told_goodbye() -> None:
    made = call()
    made.heard()
    stop(made)
    made.say(HELO + ENVELOPE + b"DATA\r\n")
    made.say(b"x\r\n.\r\nQUIT\r\n")
    assert codes(made.heard())[-2:] == ["250", "221"]


def test_a_port_can_turn_a_client_away() -> None:
    made = Call(LISTENERS["open"], welcome=lambda session: Reply(554, "Not you", "5.3.2"))
    assert made.heard() == b"554 5.3.2 Not you\r\n"
    assert made.closed
    made.receiver.dataReceived(HELO)
    assert made.heard() == b""
    made.hang_up()
    assert not made.clock.getDelayedCalls()


def test_who_does_not_take_the_last_reply_is_cut_off() -> None:
    made = call()
    made.receiver.dataReceived(b"QUIT\r\n")
    made.clock.advance(9)
    assert not made.transport.aborted
    made.clock.advance(1)
    assert made.transport.aborted


def test_a_421_of_the_reception_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closing(self: Recorder, *_: object) -> Reply:
        return Reply(421, "Too many mails of this key", "4.7.0")

    monkeypatch.setattr(Recorder, "mail", closing)
    made = call()
    made.say(HELO + ENVELOPE)
    assert codes(made.heard()) == ["250", "421"]
    assert made.closed


def test_bad_recipients_of_a_customer_are_no_errors() -> None:
    made = call("submission")
    made.say(b"STARTTLS\r\n")
    made.say(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\nMAIL FROM:<a@b.example>\r\n" + b"RCPT TO:<unknown@d.example>\r\n" * 200)
    assert codes(made.heard()).count("550") == 200
    assert not made.closed


def test_a_sink_may_refuse_while_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        drops = 0

        def write(self, piece: bytes) -> None:
            raise Refused(Reply(452, "Disk full", "4.3.1"))

        def drop(self) -> None:
            self.drops += 1

    sink = Full()

    async def body(self: Recorder, *_: object) -> Full:
        return sink

    monkeypatch.setattr(Recorder, "body", body)
    made = in_data(call())
    made.say(b"x\r\ny\r\n.\r\nNOOP\r\n")
    assert codes(made.heard()) == ["452", "250"]
    assert sink.drops == 1


def test_a_peer_is_known() -> None:
    seen: list[Session] = []

    def welcome(session: Session) -> Reply:
        seen.append(session)
        return replies.SHUTDOWN

    Call(LISTENERS["open"], welcome=welcome)
    assert seen[0].peer.host == "192.168.1.1"


# ── the transcript ──


def test_the_transcript_has_no_bodies_and_no_secrets() -> None:
    made = call("submission")
    made.say(b"EHLO me\r\n")
    made.say(b"STARTTLS\r\n")
    made.say(b"EHLO me\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n" + ENVELOPE + b"DATA\r\nSecret words\r\n.\r\nBDAT 3\r\nabcQUIT\r\n")
    transcript = str(made.receiver.session.transcript)
    assert "C: AUTH PLAIN\nS: 235 2.7.0 Authenticated\n" in transcript
    assert "C: RCPT TO:<c@d.example>\nS: 250 2.1.5 Recipient OK\n" in transcript
    assert "C: (14 octets of message)\nS: 250 2.0.0 Queued as 1\n" in transcript
    assert transcript.endswith("C: QUIT\nS: 221 2.0.0 Bye")
    for secret in ("AG1haWxz", "s3cret", "Secret words", "abc"):
        assert secret not in transcript


def test_the_transcript_of_a_login_dialogue_has_no_secrets() -> None:
    made = call()
    made.say(b"STARTTLS\r\n")
    secret = b"PLAIN AG1haWxzdmMAczNjcmV0\r\n"
    made.say(b"EHLO me\r\nAUTH LOGIN bWFpbHN2Yw==\r\nczNjcmV0\r\nauth  " + secret + b"AUTH\t" + secret + secret)
    transcript = str(made.receiver.session.transcript)
    assert "czNjcmV0" not in transcript
    assert "AG1haWxz" not in transcript
    assert "C: (response)" in transcript


def test_the_transcript_is_bounded() -> None:
    made = call(Listener("mx.test", Limits(chatter=100_000, stranger_octets=None)))
    made.say(b"NOOP\r\n" * 5000 + b"NOOP " + b"x" * 2000 + b"\r\nQUIT\r\n")
    lines = str(made.receiver.session.transcript).splitlines()
    assert len(lines) == 501
    assert lines[250].endswith(" commands and replies left out]")
    assert lines[-1] == "S: 221 2.0.0 Bye"
    assert max(map(len, lines)) < 600


def test_importing_the_server_picks_no_reactor() -> None:
    modules = "mailsvc.smtp.server.certificates, mailsvc.sandbox.inbox, mailsvc.smtp.server.listener"
    script = f"import sys, {modules}; print('twisted.internet.reactor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
