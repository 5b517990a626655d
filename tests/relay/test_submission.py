"""What happens to a mail between the final dot and intake."""

from __future__ import annotations

import mmap
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.content_filter import ContentFilter
from mailsvc.intake import AsReceived, Incoming
from mailsvc.mail.address import Path
from mailsvc.relay import spool
from mailsvc.relay.submission import stored_envelope
from mailsvc.settings.content_filter import ContentFilter as Rules
from mailsvc.settings.plans import Exhausted, Period
from mailsvc.smtp.server.extensions import NO_RCPT_PARAMETERS, MailParameters, RcptParameters
from mailsvc.smtp.server.session import Envelope, Recipient
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import PIECE, Spooled
from mailsvc.store.mail.values import IN_FILE, in_memory
from mailsvc.store.people.api_keys import digest
from tests.relay.harness import ME, TOKEN, RelayRig


def content(email: Incoming) -> AsReceived:
    assert isinstance(email.content, AsReceived)
    return email.content


def test_header_lines_are_prepended_and_nothing_else_changes() -> None:
    rig = RelayRig()
    message = b"X-Odd:  a\r\n\tb \r\nBcc: c@example.net\r\n" + ME + b"DKIM-Signature: v=1; b=abc\r\n\r\n.\xff..\r\n \r\n"
    assert rig.logged_in().mail(message.replace(b"\r\n.", b"\r\n..")).startswith("250")
    [client] = rig.intake.messages
    assert client.endswith(message.replace(b"Bcc: c@example.net\r\n", b""))
    trace = client.removesuffix(message.replace(b"Bcc: c@example.net\r\n", b"")).decode()
    assert re.fullmatch(
        r"Received: by mx\.test with ESMTPSA id [0-9a-f-]{36}\r\n tls TLS_AES_256_GCM_SHA384; .*\r\n"
        r"Date: .*\r\nMessage-ID: <[0-9a-f-]{36}@example\.com>\r\n",
        trace,
    )


@pytest.mark.parametrize("message", [ME + b"Subject: x\r\n", ME + b"Subject: x\r\n\r\n"], ids=["header only", "empty body"])
def test_a_message_without_a_body_has_an_empty_line(message: bytes) -> None:
    rig = RelayRig()
    assert rig.logged_in().mail(message).startswith("250")
    assert rig.intake.messages[0].endswith(ME + b"Subject: x\r\n\r\n") and b"\r\n" * 3 not in rig.intake.messages[0]


def test_received_has_the_key_exchange_group() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.client.protocol.session.tls = {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384", "group": "x25519"}
    client.mail(ME + b"\r\nx\r\n")
    assert b" tls TLS_AES_256_GCM_SHA384 group x25519; " in rig.intake.messages[0]


def test_the_envelope_determines_the_recipients() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.mail(ME + b"To: x@example.org\r\nCc: b@example.net\r\n\r\nx\r\n", "a@example.net", "b@example.net", "a@example.net")
    [email] = rig.intake.emails
    assert content(email).recipients == ("a@example.net", "b@example.net")
    assert [box.address for box in email.to] == ["x@example.org"]
    assert [box.address for box in email.bcc] == ["a@example.net", "a@example.net"] and email.source == "smtp"


def test_stored_envelope_without_rcpt_parameters() -> None:
    paths = [Path("a", "example.net"), Path("b", "example.net"), Path("a", "example.net")]
    dsn_options = MailParameters(ret="FULL", envid="x")
    for parameters, utf8 in ((MailParameters(), False), (MailParameters(), True), (dsn_options, False), (dsn_options, True)):
        nothing = Envelope(paths[0], parameters, [Recipient(path, NO_RCPT_PARAMETERS) for path in paths])
        asks = Envelope(paths[0], parameters, [Recipient(path, RcptParameters()) for path in paths])  # looked at one by one
        assert (
            stored_envelope(nothing, utf8)
            == stored_envelope(asks, utf8)
            == StoredEnvelope("a@example.net", smtputf8=utf8, ret=parameters.ret, envid=parameters.envid)
        )


def test_dsn_options_are_stored_by_recipient() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com> RET=HDRS ENVID=a+2Bb SMTPUTF8 BODY=8BITMIME")
    client.command("RCPT TO:<a@example.net> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;first@example.net")
    client.command("RCPT TO:<b@example.net>", "RCPT TO:<c@example.net> NOTIFY=NEVER", "DATA")
    assert client.send("Subject: Grüße\r\n".encode() + ME + b"\r\nx\r\n.\r\n").startswith("250")
    assert content(rig.intake.emails[0]).envelope == StoredEnvelope(
        sender="me@example.com",
        ret="HDRS",
        envid="a+b",
        smtputf8=True,
        notify=("DELAY,SUCCESS", None, "NEVER"),
        orcpt=("rfc822;first@example.net", None, None),
    )
    assert b" with UTF8SMTPSA id " in rig.intake.messages[0].replace(b"\r\n", b"")


def test_idempotency_key_and_fingerprint() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    for head in (b"Date: 1\r\nMessage-ID: <1@x>\r\n", b"Date: 2\r\n"):
        client.mail(b"Idempotency-Key: k\r\n" + head + ME + b"\r\nx\r\n")
    client.mail(b"Idempotency-Key: k\r\n" + ME + b"\r\ny\r\n")
    client.mail(ME + b"\r\ny\r\n")
    first, second, third, none = rig.intake.keys
    assert first is not None and first == second and third is not None and none is None
    assert (first.endpoint, first.key) == ("smtp", "k") and third.fingerprint != first.fingerprint
    assert all(b"Idempotency-Key" not in message for message in rig.intake.messages)


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (b"\r\nx\r\n", "550 5.7.1 The message needs a From header."),
        (b"", "550 5.7.1 The message needs a From header."),
        (b"From: a@example.com, b@example.com\r\n\r\nx\r\n", "550 5.7.1 The From header is not one address"),
        (b"no header at all\r\n", "550 5.6.0 The header has a line that is not a field."),
        (ME + b"X: y\r\n" * 1001 + b"\r\nx\r\n", "550 5.6.0 The header has more than 1000 fields."),
        (
            ME + b"X: " + b"y" * 900 + b"\r\n" + (b" " + b"y" * 900 + b"\r\n") * 300 + b"\r\nx\r\n",
            "552 5.3.4 The header is larger than 256 kB",
        ),
        (ME + b"Received: x\r\n" * 100 + b"\r\nx\r\n", "554 5.4.6 The message has passed too many servers."),
        (
            ME + b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + b"--q\r\n\r\nx\r\n" * 1001 + b"--q--\r\n",
            "550 5.6.0 The message has more than 1000 parts.",
        ),
        (ME + b"\r\nx\ny\r\n", "550 5.5.2"),
        (ME + b"\r\n" + b"x" * 999 + b"\r\n", "554 5.6.0"),
    ],
)
def test_invalid_messages_are_refused(message: bytes, reply: str) -> None:
    rig = RelayRig()
    client = rig.logged_in()
    assert client.mail(message).startswith(reply)
    assert not rig.intake.emails and rig.budget.used == 0
    assert client.mail(ME + b"\r\nx\r\n").startswith("250")


@pytest.mark.parametrize(
    ("field", "refused"),
    [
        (b"Sender: Boss <boss@elsewhere.example>", True),
        (b'sender : "boss@example.com" <boss@elsewhere.example>', True),
        (b"Sender: boss", True),
        (b"Resent-From: a@example.com,\r\n b@elsewhere.example", True),
        (b"Resent-Sender: b@news.example.com", True),
        (b"Resent-From: " + b"a@example.com," * 21, True),
        (b"Sender: Boss (b@elsewhere.example) <boss@EXAMPLE.com>", False),
        (b"Sender:\r\nResent-From: a@example.com, b@example.com", False),
        (b"Reply-To: b@elsewhere.example", False),
    ],
)
def test_a_key_for_one_domain_sends_in_no_other_name(field: bytes, refused: bool) -> None:
    rig = RelayRig()
    client = rig.logged_in()
    message = ME + field + b"\r\n\r\nx\r\n"
    assert client.mail(message).startswith("250")
    rig.keys.callers[digest(TOKEN)] = attrs.evolve(rig.keys.callers[digest(TOKEN)], domain_id=UUID(int=9))
    reply = f"550 5.7.1 This API key cannot send with an address of another domain in the {field.split(b':')[0].strip().decode()} header."
    assert client.mail(message).startswith(reply if refused else "250")


LARGE = ME + b"Subject: large\r\n\r\n" + (b"x" * 998 + b"\r\n") * 4000


def test_a_large_mail_is_spooled_to_disk() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com>", *(f"RCPT TO:<r{n}@example.net>" for n in range(50)), "DATA")
    tracemalloc.start()
    for start in range(0, len(LARGE), 65536):
        client.send(LARGE[start : start + 65536])
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert rig.budget.used == len(LARGE) - 2  # the last line end may become part of the end
    assert client.send(b".\r\n").startswith("250")
    message = content(rig.intake.emails[0]).message
    assert isinstance(message, Spooled) and len(message) == len(rig.intake.messages[0])
    assert in_memory(message) == len(message) // IN_FILE
    assert rig.intake.messages[0].endswith(LARGE) and max(map(len, message)) <= PIECE
    assert rig.budget.used == 0


class Mapped(mmap.mmap):
    """A mapped file that counts the bytes read in threads and in the reactor's thread."""

    in_thread = False
    read: ClassVar[Counter[bool]] = Counter()

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        Mapped.read[Mapped.in_thread] += len(found)
        return found

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        end = len(self) if end is None else min(end, len(self))
        at = super().find(sub, start, end)
        Mapped.read[Mapped.in_thread] += (end if at < 0 else at) - start
        return at


def test_a_large_mail_is_processed_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RelayRig()

    async def in_thread(work: Callable[[], Any]) -> Any:
        Mapped.in_thread = True
        try:
            return work()
        finally:
            Mapped.in_thread = False

    rig.relay.submissions = attrs.evolve(rig.relay.submissions, in_thread=in_thread)
    monkeypatch.setattr("mailsvc.relay.spool.mmap.mmap", Mapped)
    append, written = spool._append, 0

    def counted(file: Any, data: bytearray) -> Any:
        nonlocal written
        assert Mapped.in_thread
        written += len(data)
        return append(file, data)

    monkeypatch.setattr(spool, "_append", counted)
    Mapped.read.clear()
    mail = b"Idempotency-Key: k\r\nContent-Type: multipart/mixed; boundary=b\r\n" + LARGE
    assert rig.logged_in().mail(mail).startswith("250")
    assert written == len(mail)
    assert Mapped.read[True] > 1.9 * len(LARGE)  # its parts, and its fingerprint
    assert Mapped.read[False] <= 4096  # its header


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_slow_disk_does_not_block_the_session(gives_up: bool) -> None:
    rig = RelayRig()
    writes: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
        writes.append((work, Deferred()))
        return writes[-1][1]

    rig.relay.submissions = attrs.evolve(rig.relay.submissions, in_thread=in_thread)
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com>", "RCPT TO:<a@example.net>", "DATA")
    client.send(LARGE[:300_000])
    client.send(LARGE[300_000:350_000])
    assert len(writes) == 1  # and nothing is read from the disk meanwhile
    if gives_up:
        client.disconnect()
    else:
        assert client.send(LARGE[350_000:400_000] + b"\r\n.\r\n") == ""
    while writes:
        work, over = writes.pop()
        over.callback(work())
    assert rig.budget.used == 0
    assert len(rig.intake.emails) == (not gives_up)
    assert gives_up or rig.intake.messages[0].endswith(LARGE[:400_000] + b"\r\n")


def test_large_and_small_mails_have_the_same_fingerprint_and_faults() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.mail(b"Idempotency-Key: k\r\n" + LARGE)
    client.mail(b"Date: 1\r\nIdempotency-Key: k\r\n" + LARGE)
    assert rig.intake.keys[0] == rig.intake.keys[1]
    deep = b"".join(b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (n, n + 1) for n in range(60))
    head = ME + b"Content-Type: multipart/mixed; boundary=b0\r\n\r\n"
    assert client.mail(head + deep + LARGE).startswith("550 5.6.0 The parts")


def test_mail_over_the_memory_budget_is_deferred() -> None:
    rig = RelayRig(in_flight=1_000_000)
    first, second = rig.logged_in(), rig.logged_in()
    first.command("MAIL FROM:<me@example.com>", "RCPT TO:<a@example.net>", "DATA")
    first.send(LARGE[:900_000])
    assert second.mail(ME + b"\r\nx\r\n", parameters=" SIZE=200000").startswith("452 4.3.1")
    assert second.mail(LARGE[:200_000] + b"\r\n").startswith("452 4.3.1")
    assert second.mail(ME + b"\r\nx\r\n").startswith("250")
    first.disconnect()
    assert rig.budget.used == 0
    assert second.mail(ME + b"\r\nx\r\n", parameters=" SIZE=900000").startswith("250")
    assert rig.budget.used == 0


def test_unauthenticated_clients_leave_room_for_customers() -> None:
    rig = RelayRig(in_flight=16_000_000, spool=16_000_000)
    for host in ("192.0.2.8", "192.0.2.9"):
        unauthenticated = rig.connect("25", host)
        unauthenticated.command("EHLO mx")
        assert "354 " in unauthenticated.command("MAIL FROM:<> SIZE=900000", "RCPT TO:<postmaster>", "DATA")
        unauthenticated.send((b"x" * 98 + b"\r\n") * 2000)
    used = rig.budget.used
    assert 390_000 < used == rig.budget.inbound.memory.used <= 400_000
    other = rig.logged_in()
    other.command("MAIL FROM:<me@example.com> SIZE=1900000", "RCPT TO:<a@example.net>", "DATA")
    assert rig.budget.used == used
    assert rig.logged_in().mail(ME + b"\r\nx\r\n").startswith("250")


def test_a_large_mail_waits_for_memory_and_is_deferred_after_a_timeout() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    turns = rig.budget.submission.work
    assert Deferred.fromCoroutine(turns.take("another account", turns.limit)).called
    for end, reply in (("expires", "452 4.3.1"), ("comes", "250 2.0.0")):
        assert client.mail(LARGE) == "" and turns.waiting == 1
        if end == "expires":
            rig.clock.advance(turns.seconds)
        else:
            turns.give(turns.limit)
        assert client.client.received().decode().startswith(reply)
    assert rig.budget.used == 0


@pytest.mark.parametrize("filtered", [0, 30_000_000, 50_000_000])
def test_what_a_large_mail_needs_while_it_is_accepted(filtered: int) -> None:
    """It is read in pieces, unless the content filter is asked about it."""
    rig = RelayRig()
    client, turns = rig.logged_in(), rig.budget.submission.work
    assert Deferred.fromCoroutine(turns.take("another account", turns.limit)).called
    if filtered:
        rig.intake.content_filter = ContentFilter(None, Rules(size=filtered), rig.clock, None)  # type: ignore[arg-type]
    assert client.mail(ME + b"\r\n" + (b"x" * 98 + b"\r\n") * 400_000) == ""
    [waiting] = turns._queues.popitem()[1]
    as_a_whole = 2 * (40_000_000 + len(ME) + 2)
    assert waiting.size == (as_a_whole if filtered > 40_000_000 else 16 << 20)


def test_a_full_disk_gets_a_452_and_the_session_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RelayRig()
    client = rig.logged_in()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mailsvc.relay.spool.tempfile.TemporaryFile", full)
        assert client.mail(LARGE) == "452 4.3.1 Insufficient system storage"
    assert client.mail(LARGE).startswith("250") and rig.budget.used == 0


def test_a_chunked_mail_is_stored_unchanged() -> None:
    rig = RelayRig()
    client = rig.logged_in()
    client.command("MAIL FROM:<me@example.com>", "RCPT TO:<a@example.net>")
    client.send(b"BDAT %d\r\n" % len(ME) + ME)
    assert client.send(b"BDAT 9 LAST\r\n\r\n.\r\nab\r\n").startswith("250")
    assert rig.intake.messages[0].endswith(ME + b"\r\n.\r\nab\r\n")


@pytest.mark.parametrize(("period", "reply"), [("day", "451 4.7.1"), ("month", "550 5.7.1")])
def test_an_exhausted_plan(period: Period, reply: str) -> None:
    """Tomorrow it fits again, so the client may keep it; a month is too long to wait for."""
    rig = RelayRig()
    rig.intake.answer = Exhausted(period, 1, 100, 100, datetime(2026, 11, 22, tzinfo=UTC))
    found = rig.logged_in().mail(ME + b"\r\nx\r\n")
    assert found.startswith(f"{reply} You have exceeded your") and "2026-11-22 00:00 UTC" in found


def test_a_mail_with_more_recipients_than_a_whole_day_allows_is_refused_permanently() -> None:
    rig = RelayRig()
    rig.intake.answer = Exhausted("day", 60, 0, 50, datetime(2026, 11, 22, tzinfo=UTC))
    assert rig.logged_in().mail(ME + b"\r\nx\r\n").startswith("550 5.7.1 This request has 60 recipients")
