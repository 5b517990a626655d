"""Headers of submitted messages: the author must be unambiguous, and nothing else changes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email import message_from_bytes, policy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailsvc.mail import submission
from mailsvc.mail.address import Mailbox
from mailsvc.mail.submission import Unfit, fingerprint, read, received

ME = b"From: Me <me@example.com>\r\n"
NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (b"me@example.com", "me@example.com"),
        (b" <me@EXAMPLE.com> ", "me@example.com"),
        (b"Me <me@example.com>", "me@example.com"),
        (b'"Me, Myself" <me@example.com>', "me@example.com"),
        (b"=?utf-8?q?Zo=C3=AB?= <me@example.com>", "me@example.com"),
        ("Zoë <me@example.com>".encode(), "me@example.com"),
        (b"root@example.com (Cron Daemon)", "root@example.com"),
        (b"Me <me@example.com> (on behalf of us@elsewhere.example)", "me@example.com"),
        (b'"Me, Myself" <me@example.com>\r\n (work)', "me@example.com"),
        (b"Me\r\n <me@example.com>", "me@example.com"),
        (b'"a@elsewhere.example" <me@example.com>', "me@example.com"),
        (b'A <"a..b"@example.com>', '"a..b"@example.com'),
    ],
)
def test_the_author_is_parsed(value: bytes, address: str) -> None:
    assert read(b"From: " + value + b"\r\n").sender.address == address


def test_tabs_and_line_ends_in_encoded_names_are_shown_as_spaces() -> None:
    mail = read(b"From: =?utf-8?q?Zo=C3=AB=09M=0A?= <me@example.com>\r\nTo: =?utf-8?b?WsO2CVg=?= <a@example.net>\r\n")
    assert mail.sender == Mailbox("Zoë M", "me", "example.com")
    assert mail.to == (Mailbox("Zö X", "a", "example.net"),)
    assert b"=09M=0A" in mail.kept


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Subject: x\r\n",
        ME + ME,
        ME + b"FROM: other@example.com\r\n",
        ME + b"From : other@elsewhere.example\r\n",
        b"From: a@example.com, b@elsewhere.example\r\n",
        b"From: a..b@example.com\r\n",
        b'From: "A" <.a@example.com>\r\n',
        b"From: a@example.com b@elsewhere.example\r\n",
        b"From: <a@example.com> <b@elsewhere.example>\r\n",
        b"From: a@example.com <b@elsewhere.example\r\n",
        b"From: =?utf-8?q?a=40example=2Ecom?=\r\n",
        b"From: a@=?utf-8?q?example?=.com\r\n",
        b"From: friends: a@example.com;\r\n",
        b"From: @example.com:b@elsewhere.example\r\n",
        b"From: a@example.com (b@elsewhere.example) c@elsewhere.example\r\n",
        b"From: a@example.com (<b@elsewhere.example>)\r\n",
        b"From: A <a@example.com> (<b@elsewhere.example>)\r\n",
        b"From: b@elsewhere.example <a@example.com> (A)\r\n",
        b"From: A <a@example.com> (B) <b@elsewhere.example>\r\n",
        b"From: a@example.com\0\r\n",
        b"From:\r\n",
        b"From: <>\r\n",
        b"From: a@localhost\r\n",
        b"From: a@[192.0.2.1]\r\n",
        b"From: a\xff@example.com\r\n",
        b'From: "a@example.com\r\n',
    ],
)
def test_a_missing_or_ambiguous_author_is_refused(head: bytes) -> None:
    with pytest.raises(Unfit) as unfit:
        read(head)
    assert unfit.value.kind == "from"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (ME + b"no field\r\n", "content"),
        (b"From me Sat Nov 21\r\n" + ME, "content"),
        (ME + b": empty name\r\n", "content"),
        (ME + b"N\xc3\xa4me: x\r\n", "content"),
        (ME + b"X: a\rb\r\n", "content"),
        (ME + b"Message-ID: <a@b>\r\nMessage-ID: <c@d>\r\n", "content"),
        (ME + b"Subject: a\r\nSUBJECT : b\r\n", "content"),
        (ME + b"To: a@b.example\r\nX: y\r\nTo: c@d.example\r\n", "content"),
        (ME + b"Cc: a@b.example\r\nCc: c@d.example\r\n", "content"),
        (ME + b"Idempotency-Key: a\r\nResend-Idempotency-Key: b\r\n", "content"),
        (ME + b"Idempotency-Key:\r\n", "content"),
        (ME + b"Idempotency-Key: " + b"k" * 257 + b"\r\n", "content"),
        (ME + b"Idempotency-Key: =?utf-8?q?k=00?=\r\n", "content"),
        (ME + b"X: y\r\n" * 1000, "content"),
        (ME + b"Received: from a by b\r\n" * 100, "loop"),
    ],
)
def test_invalid_headers_are_refused(head: bytes, kind: str) -> None:
    with pytest.raises(Unfit) as unfit:
        read(head)
    assert unfit.value.kind == kind


def test_kept_fields_are_unchanged() -> None:
    odd = b"X-Odd :  a  b\t\r\n\tfolded \r\n Caf\xe9 \xff\r\nDKIM-Signature: v=1; b=\r\n\tabc\r\nAuthentication-Results: x\r\n"
    head = b"Return-Path: <x@y>\r\n" + odd + b"bCC: a@b,\r\n c@d\r\n" + ME + b"Idempotency-Key: k\r\nResent-Bcc: e@f\r\nSubject: x\r\n"
    mail = read(head)
    assert mail.kept == odd + ME + b"Subject: x\r\n"
    assert mail.key == "k" and mail.utf8


@pytest.mark.parametrize("name", [b"From :", b"FROM\t \t:"])
def test_a_space_before_the_colon_of_from_is_removed(name: bytes) -> None:
    mail = read(b"X : y\r\n" + name + b" Me\r\n <me@example.com>\r\nBcc: x@y\r\n")
    assert mail.kept == b"X : y\r\n" + name[:4] + b": Me\r\n <me@example.com>\r\n"
    assert read(name + b" me@example.com\r\n").kept == name[:4] + b": me@example.com\r\n"


def test_a_space_before_the_colon_of_a_signed_field_is_removed() -> None:
    """Exim looks for the name with its colon, and would not verify the signature."""
    head = b"Subject \t: a\r\n b\r\nX : y\r\nIn-Reply-To : <a@b>\r\n"
    assert read(ME + head).kept == ME + b"Subject: a\r\n b\r\nX : y\r\nIn-Reply-To: <a@b>\r\n"


@pytest.mark.parametrize(
    ("field", "bulk"),
    [
        (b"Precedence: bulk", True),
        (b"PRECEDENCE:\r\n LIST", True),
        (b"Precedence: junk", False),
        (b"List-Id: a", True),
        (b"Feedback-ID: a", True),
        (b"List-Unsubscribe: <https://a.example>", False),
    ],
)
def test_bulk_mail_is_recognised(field: bytes, bulk: bool) -> None:
    assert read(ME + field + b"\r\n").bulk is bulk


def test_missing_fields_are_added_in_front() -> None:
    assert read(ME).prefix("", "<1@example.com>", NOW) == b"Date: Sat, 21 Nov 2026 09:30:00 +0000\r\nMessage-ID: <1@example.com>\r\n"
    mail = read(ME + b"Date: yesterday\r\nMessage-Id:\r\n <2@example.com>\r\n")
    assert (mail.prefix("", "<1@example.com>", NOW), mail.message_id) == (b"", "<2@example.com>")


@pytest.mark.parametrize("empty", [b"", b" ", b" \r\n\t "])
def test_empty_fields_count_as_missing(empty: bytes) -> None:
    mail = read(b"Message-Id:" + empty + b"\r\n" + ME + b"DATE :" + empty + b"\r\nSubject:\r\n")
    assert mail.prefix("", "<1@example.com>", NOW) == read(ME).prefix("", "<1@example.com>", NOW)
    assert mail.kept == ME + b"Subject:\r\n"
    assert mail.message_id is None


def test_the_received_field_does_not_name_the_client() -> None:
    line = received("mx.example.com", "ESMTPSA", "1-2-3", "TLS_AES_256_GCM_SHA384", NOW)
    assert "".join(line.split("\r\n")) == (
        "Received: by mx.example.com with ESMTPSA id 1-2-3 tls TLS_AES_256_GCM_SHA384; Sat, 21 Nov 2026 09:30:00 +0000"
    )
    assert max(map(len, line.split("\r\n"))) <= 76


def test_invalid_recipients_in_the_header_are_skipped() -> None:
    mail = read(ME + b'To: "B, C" <b@example.net>, =?utf-8?q?Zo=C3=AB?= <z@example.net>,\r\n nobody\r\nCc: team: d@example.net;\r\n')
    assert [box.display for box in mail.to] == ['"B, C" <b@example.net>', "Zoë <z@example.net>"]
    assert [box.address for box in mail.cc] == ["d@example.net"]


@pytest.mark.parametrize(
    "value",
    [b"@" * 250_000, b"(" * 250_000, b'"' * 250_001, b"a@b," * 60_000, b"<" * 250_000, b"<@" * 120_000, b"\\" * 250_000, b"a:" * 120_000],
)
def test_a_huge_field_is_parsed_quickly(value: bytes) -> None:
    folded = b"\r\n ".join(value[start : start + 900] for start in range(0, len(value), 900))
    began = time.process_time()
    read(ME + b"To: " + folded + b"\r\nMessage-ID: " + folded + b"\r\n")
    with pytest.raises(Unfit):
        read(b"From: " + folded + b"\r\n")
    assert time.process_time() - began < 2


def test_retries_have_the_same_fingerprint() -> None:
    def mark(head: bytes, envelope: tuple[str, ...] = ("me@example.com", "a@b.example")) -> str:
        return fingerprint(envelope, read(head).counted).hexdigest()

    first = mark(ME + b"Date: 1\r\nMessage-ID: <1@x>\r\nIdempotency-Key: k\r\nSubject: s\r\n")
    assert mark(ME + b"Resend-Idempotency-Key: k\r\nMessage-ID: <2@x>\r\nDate: 2\r\nSubject: s\r\n") == first
    assert mark(ME + b"Subject: t\r\n") != first
    assert mark(ME + b"Subject: s\r\n", ("me@example.com",)) != first
    assert mark(ME + b"Subject: s\r\n", ("me@example.com", "a", "b.example")) != first


FIELD = st.sampled_from([b"X-A: b\r\n", b"Bcc: x@y\r\n", b"Date: z\r\n", b"To: a@b.example\r\n c\r\n", b"Subject: =?utf-8?q?=C3?=\r\n", ME])


@given(st.lists(FIELD, max_size=12))
@settings(max_examples=200)
def test_other_parsers_find_the_same_author(fields: list[bytes]) -> None:
    head = b"".join(fields)
    try:
        mail = read(head)
    except Unfit:
        assert fields.count(ME) != 1 or any(fields.count(field) > 1 for field in fields if field[:4] in (b"To: ", b"Date", b"Subj"))
        return
    message = message_from_bytes(mail.kept + b"\r\nbody\r\n", policy=policy.default)
    assert message["From"].addresses[0].addr_spec == mail.sender.address
    assert message["Bcc"] is None and len(message.defects) == 0


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for head in (data, ME + data, ME + b"To: " + data.replace(b"\n", b"") + b"\r\n"):
        try:
            submission.read(head)
        except Unfit as unfit:
            assert str(unfit)


@given(st.text(st.sampled_from('ab@.<> ;:,()"\\\u00e9\ufffd\x00'), max_size=30))
@settings(max_examples=200)
@example("Name <a@b.example>")
def test_a_single_address_is_parsed_like_a_list(text: str) -> None:
    text = text.strip()
    assert list(submission._items(text)) == list(submission._split(text))


def test_control_characters_of_a_subject_are_sent_but_not_shown() -> None:
    head = b"From: a@example.com\r\nSubject: a\x07b =?utf-8?q?c=00=1b[2Jd?=\r\n"
    found = read(head)
    assert (found.subject, found.kept) == ("ab c[2Jd", head)


@pytest.mark.parametrize("label", ["b\u00fccher", "xn--bcher-kva"])
def test_few_internationalized_domains_are_read_for_display(label: str) -> None:
    """Reading a thousand of them takes a second, and the envelope has the recipients."""
    listed = ", ".join(f"a@{label}.n{number}.example" for number in range(1000))
    mail = read(ME + f"To: {listed}\r\nCc: {listed}, \u00e9 <b@example.org>\r\n".encode())
    assert [len(mail.to), len(mail.cc)] == [30, 30]
    many = ", ".join(f'"\u00e9" <a@b--c{number}.example>' for number in range(500))
    assert len(read(ME + f"To: {many}\r\n".encode()).to) == 500
