"""Composing messages, which our parser and the standard library decode to the same contents."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from email.utils import format_datetime

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail import mime, seven_bit
from mailsvc.mail.address import Mailbox, parse_mailbox
from mailsvc.mail.compose import Attachment, ComposeError, Draft, compose, rfc5322_date

BASE = Draft(
    sender=parse_mailbox("Acme <news@acme.example>"),
    to=(parse_mailbox("Jane Doe <jane@b.example>"),),
    subject="Hello",
    date=datetime(2026, 11, 20, 10, 5, 9, tzinfo=UTC),
    message_id="<0192@acme.example>",
    text="Hi",
)

CHARACTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")
HEADER_TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]) | st.just("\t"), max_size=120)
NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=60).map(str.strip)
PIECES = ["word ", "é", "日", ".", "\n.\n", "From ", "\nFrom x\n", "\r\n", "\r", " \n", "=", "--=_a", "x" * 80, "\r\n--=_m"]
BODIES = st.text(CHARACTERS, min_size=1) | st.lists(st.sampled_from(PIECES), min_size=1, max_size=30).map("".join)
FILES = st.builds(
    Attachment, st.binary(max_size=300), st.none() | HEADER_TEXT.map(str.strip).filter(bool), st.none() | st.just("image/png"), st.none()
)
DRAFTS = st.builds(
    lambda **kw: attrs.evolve(BASE, **kw),
    sender=st.builds(Mailbox, NAMES, st.just("a"), st.just("b.example")),
    to=st.lists(st.builds(Mailbox, NAMES, st.just("a"), st.just("b.example")), max_size=3).map(tuple),
    subject=HEADER_TEXT,
    html=st.none() | BODIES,
    text=st.none() | BODIES,
    attachments=st.lists(FILES, max_size=3).map(tuple),
)


def stdlib(message: bytes) -> EmailMessage:
    parsed = message_from_bytes(message, policy=default)
    assert isinstance(parsed, EmailMessage)
    return parsed


def normal(text: str | None) -> str | None:
    return text.replace("\r\n", "\n").replace("\r", "\n") if text else None


def words(name: str) -> str:
    return "".join(name.split())  # in a phrase, space is not part of the value


def well_formed(message: bytes) -> None:
    assert message.isascii() and message.endswith(b"\r\n")
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n|\x00", message)
    lines = message.split(b"\r\n")
    assert all(len(line) <= 998 for line in lines)
    assert not any(line == b"." or line.startswith(b"From ") for line in lines)


@given(DRAFTS)
@settings(max_examples=200)
def test_any_draft_is_parsed_back(draft: Draft) -> None:
    message = compose(draft)
    well_formed(message)
    parsed = mime.parse(message)
    assert parsed.header("subject") == draft.subject
    assert parsed.html == normal(draft.html)
    assert (parsed.text or None) == normal(draft.text)
    assert [(file.filename, file.content, file.disposition) for file in parsed.files] == [
        (file.filename, file.content, "attachment") for file in draft.attachments
    ]


@given(DRAFTS)
@settings(max_examples=200)
def test_any_draft_is_parsed_back_by_the_standard_library(draft: Draft) -> None:
    parsed = stdlib(compose(draft))
    assert parsed["subject"] == draft.subject
    for name, boxes in (("from", (draft.sender,)), ("to", draft.to)):
        if boxes:
            assert [words(a.display_name) for a in parsed[name].addresses] == [words(box.name) for box in boxes]
    single = not parsed.is_multipart()
    for kind, given_text in (("html", draft.html), ("plain", draft.text)):
        part = parsed.get_body((kind,))
        if given_text:
            assert part is not None
            text = normal(part.get_content()) or ""
            last_line_end = single and part["content-transfer-encoding"] != "base64"
            assert (text.removesuffix("\n") if last_line_end else text) == normal(given_text)
    attached = list(parsed.iter_attachments()) if parsed.get_content_type() == "multipart/mixed" else []
    assert [part.get_payload(decode=True) for part in attached] == [file.content for file in draft.attachments]
    assert [part.get_filename() for part in attached] == [file.filename for file in draft.attachments]
    assert all(not part.defects for part in parsed.walk())


def test_a_simple_message_is_composed() -> None:
    assert compose(BASE) == (
        b"From: Acme <news@acme.example>\r\nTo: Jane Doe <jane@b.example>\r\nSubject: Hello\r\n"
        b"Date: Fri, 20 Nov 2026 10:05:09 +0000\r\nMessage-ID: <0192@acme.example>\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n\r\nHi\r\n"
    )


def test_the_same_draft_gives_the_same_bytes() -> None:
    draft = attrs.evolve(BASE, html="<p>é</p>", attachments=(Attachment(b"x", "a.pdf"),))
    assert compose(draft) == compose(draft)


def shape(part: EmailMessage) -> object:
    inner = [shape(child) for child in part.iter_parts()] if part.is_multipart() else []  # type: ignore[arg-type]
    return (part.get_content_type(), inner) if inner else part.get_content_type()


LOGO = Attachment(b"png", "logo.png", content_id="logo")
BILL = Attachment(b"pdf", "bill.pdf")
HTML = '<img src="cid:logo">'


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "text/plain"),
        ({"text": None}, "text/plain"),
        ({"text": None, "html": HTML}, "text/html"),
        ({"text": "", "html": HTML}, "text/html"),
        ({"html": ""}, "text/plain"),
        ({"html": HTML}, ("multipart/alternative", ["text/plain", "text/html"])),
        ({"attachments": (BILL,)}, ("multipart/mixed", ["text/plain", "application/pdf"])),
        ({"text": None, "attachments": (BILL,)}, ("multipart/mixed", ["application/pdf"])),
        ({"attachments": (LOGO,)}, ("multipart/mixed", ["text/plain", "image/png"])),
        (
            {"html": HTML, "attachments": (BILL, LOGO)},
            (
                "multipart/mixed",
                [("multipart/alternative", ["text/plain", ("multipart/related", ["text/html", "image/png"])]), "application/pdf"],
            ),
        ),
        ({"text": "", "html": HTML, "attachments": (LOGO,)}, ("multipart/related", ["text/html", "image/png"])),
    ],
)
def test_only_needed_multiparts_are_written(changes: dict[str, object], expected: object) -> None:
    assert shape(stdlib(compose(attrs.evolve(BASE, **changes)))) == expected  # type: ignore[arg-type]


def test_an_inline_file_is_related_to_the_html() -> None:
    parsed = mime.parse(compose(attrs.evolve(BASE, html=HTML, attachments=(LOGO, BILL))))
    assert parsed.files == (
        mime.File("logo.png", "image/png", "logo", "inline", b"png"),
        mime.File("bill.pdf", "application/pdf", None, "attachment", b"pdf"),
    )


def test_addresses_and_custom_headers_are_written() -> None:
    cc, bcc, reply_to = ((parse_mailbox(f"{name}@b.example"),) for name in ("cc", "bcc", "reply_to"))
    headers = {"X-Entity-Ref-ID": "42", "References": "<a@b.example>"}
    message = compose(attrs.evolve(BASE, cc=cc, bcc=bcc, reply_to=reply_to, headers=headers))
    parsed = stdlib(message)
    assert (parsed["cc"], parsed["reply-to"], parsed["x-entity-ref-id"]) == ("cc@b.example", "reply_to@b.example", "42")
    assert b"bcc" not in message.lower()
    names = [name.lower() for name in parsed]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("written", ["Reply@b.example", "Support <reply@b.example>, x@b.example", "=?utf-8?Q?J=C3=BC?= <reply@b.example>"])
def test_a_reply_to_header_that_names_the_same_addresses_replaces_the_field(written: str) -> None:
    """Symfony Mailer sends its first address as `reply_to`, and all of them as a header too."""
    message = compose(attrs.evolve(BASE, reply_to=(parse_mailbox("reply@b.example"),), headers={"Reply-To": written}))
    assert message.count(b"Reply-To:") == 1
    assert f"\r\nReply-To: {written}\r\n".encode() in message


def test_a_non_ascii_address_is_written_for_smtputf8() -> None:
    message = compose(attrs.evolve(BASE, to=(parse_mailbox("Jürgen <用户@b.example>"),)))
    assert "To: =?utf-8?q?J=C3=BCrgen?= <用户@b.example>\r\n".encode() in message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"subject": "a\r\nBcc: x@y.example"}, "subject"),
        ({"subject": "a\x00"}, "subject"),
        ({"subject": "\ud800"}, "subject"),
        ({"html": "a\x00"}, "html"),
        ({"text": "\ud800"}, "text"),
        ({"message_id": "<a@b>\r\nX: y"}, "message_id"),
        ({"message_id": "a@b"}, "message_id"),
        ({"message_id": f"<{'a' * 500}@b>"}, "message_id"),
        ({"date": datetime(2026, 1, 1)}, "date"),
        ({"headers": {"X": "a\r\nBcc: x@y.example"}}, "headers"),
        ({"headers": {"X\r\nBcc": "a"}}, "headers"),
        ({"headers": {"Bcc": "a"}}, "headers"),
        ({"headers": {"X": "x" * 2000}}, "headers"),
        ({"headers": {f"X-{n}": "x " * 5000 for n in range(30)}}, "headers"),
        ({"headers": {"Reply-To": "a@b.example"}, "reply_to": (parse_mailbox("c@d.example"),)}, "headers"),
        ({"headers": {"Reply-To": "xc@d.example"}, "reply_to": (parse_mailbox("c@d.example"),)}, "headers"),
        ({"headers": {"Reply-To": "c@d.example", "reply-to": "c@d.example"}, "reply_to": (parse_mailbox("c@d.example"),)}, "headers"),
        ({"attachments": (Attachment(b"", "a\r\nX: y"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a\x00"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "\udfff"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", "text/plain\r\nX: y"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", 'text/plain;\r\n\r\nX="y"'),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", "text"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", "text/plain; charset=" + "x" * 300),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", None, "x\r\nX: y"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", None, "a>b"),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", None, ""),)}, "attachments"),
        ({"attachments": (Attachment(b"", "a", None, "x" * 128),)}, "attachments"),
    ],
)
def test_errors_name_the_invalid_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ComposeError) as caught:
        compose(attrs.evolve(BASE, **changes))  # type: ignore[arg-type]
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Attachment(b"", "a" * 1001), "The `attachments[2].filename` field can have at most 1000 characters."),
        (
            Attachment(b"", "a\n"),
            "The `attachments[2].filename` field must not contain line breaks, other control characters or lone surrogates.",
        ),
        (Attachment(b"", "a", "text"), "The `attachments[2].content_type` field must have the form type/subtype."),
        (
            Attachment(b"", "a", None, "a b"),
            "The `attachments[2].content_id` field must have 1 to 127 printable ASCII characters without spaces, < and >.",
        ),
    ],
    ids=["long name", "line break", "type", "ID"],
)
@pytest.mark.parametrize("html", [None, HTML])
def test_errors_name_the_attachment_by_its_position_in_the_request(wrong: Attachment, message: str, html: str | None) -> None:
    with pytest.raises(ComposeError) as caught:
        compose(attrs.evolve(BASE, html=html, attachments=(LOGO, BILL, wrong)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("filename", "given_type", "written"),
    [
        ("a.pdf", None, "application/pdf"),
        ("A.PDF", None, "application/pdf"),
        ("a.docx", None, "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.tar.gz", None, "application/gzip"),
        ("a.unheard-of", None, "application/octet-stream"),
        ("pdf", None, "application/pdf"),
        (None, None, "application/octet-stream"),
        ("a.bin", "text/csv; charset=utf-8", "text/csv"),
        ("invite.ics", 'text/calendar; method="REQUEST"', "text/calendar"),
        ("a.eml", "message/delivery-status", "application/octet-stream"),
        ("a", "Multipart/mixed; boundary=x", "application/octet-stream"),
    ],
)
def test_content_types_follow_the_file_extension(filename: str | None, given_type: str | None, written: str) -> None:
    message = compose(attrs.evolve(BASE, attachments=(Attachment(b"x", filename, given_type),)))
    well_formed(message)
    [file] = mime.parse(message).files
    assert (file.content_type, file.filename) == (written, filename)
    [part] = stdlib(message).iter_attachments()
    assert part.get_content_type() == written
    if given_type and "method" in given_type:
        assert part["content-type"].params["method"] == "REQUEST"


FORWARDED = b"From: a@b.example\r\nSubject: \xc3\xa4\r\n\r\nHi\r\n.\r\n--=_m0000\r\nBye"


@pytest.mark.parametrize(
    ("content", "encoding", "sent"),
    [
        (FORWARDED.replace(b"\xc3\xa4", b"a"), "7bit", FORWARDED.replace(b"\xc3\xa4", b"a")),
        (FORWARDED, "8bit", FORWARDED),
        (FORWARDED.replace(b"\r\n", b"\n"), "8bit", FORWARDED),
        (FORWARDED + b"x" * 995, "8bit", FORWARDED + b"x" * 995),
    ],
)
@pytest.mark.parametrize("given_type", [None, "Message/RFC822"])
@pytest.mark.parametrize("content_id", [None, "forwarded"])
def test_an_attached_message_is_not_encoded(
    content: bytes, encoding: str, sent: bytes, given_type: str | None, content_id: str | None
) -> None:
    """2046 §5.2.1, and 2045 §6.4: what contains an 8-bit part is 8-bit."""
    draft = attrs.evolve(BASE, html="<p>Hi</p>", attachments=(Attachment(content, "a.eml", given_type, content_id),))
    message = compose(draft)
    assert compose(draft) == message and not re.search(rb"\r(?!\n)|(?<!\r)\n", message)
    [file] = mime.parse(message).files
    assert (file.content_type, file.filename, file.content) == ("message/rfc822", "a.eml", sent)
    parsed = stdlib(message)
    [part] = [part for part in parsed.walk() if part.get_content_type() == "message/rfc822"]
    assert part["content-transfer-encoding"] == encoding and not part.defects
    assert part.get_content()["From"] == "a@b.example"
    outer = [
        each["content-transfer-encoding"] for each in parsed.walk() if each.is_multipart() and each is not part and part in each.walk()
    ]
    assert outer == [None if encoding == "7bit" else "8bit"] * len(outer) and len(outer) == (2 if content_id else 1)


def test_an_attached_8_bit_message_can_be_converted_for_servers_without_8bitmime() -> None:
    message = compose(attrs.evolve(BASE, attachments=(Attachment(FORWARDED.replace(b"Hi", b"Gr\xc3\xbc\xc3\x9fe"), "a.eml"),)))
    converted = seven_bit.convert(message)
    well_formed(converted)
    [part] = [part for part in stdlib(converted).walk() if part.get_content_type() == "message/rfc822"]
    assert part["content-transfer-encoding"] == "7bit"
    assert (part.get_content()["Subject"], part.get_content().get_content()[:5]) == ("ä", "Grüße")


@pytest.mark.parametrize("content", [b"From: a@b.example\r\n\r\n\0", b"From: a@b.example\r\n\r\n" + b"x" * 999])
def test_what_cannot_be_sent_unencoded_is_not_an_attached_message(content: bytes) -> None:
    message = compose(attrs.evolve(BASE, attachments=(Attachment(content, "a.eml"),)))
    well_formed(message)
    [file] = mime.parse(message).files
    assert (file.content_type, file.content) == ("application/octet-stream", content)


def test_a_boundary_is_not_in_an_attached_message() -> None:
    """Even if it has the boundary of the same email without it."""
    [boundary] = re.findall(rb'boundary="([^"]+)"', compose(attrs.evolve(BASE, attachments=(Attachment(b"", "a.txt"),))))
    forged = FORWARDED + b"\r\n--" + boundary + b"\r\n\r\nx"
    [file] = mime.parse(compose(attrs.evolve(BASE, attachments=(Attachment(forged, "a.eml"),)))).files
    assert file.content == forged


@pytest.mark.parametrize("name", ["Rechnung für " + "ä" * 80 + ".pdf", "ä.pdf", "a" * 200 + ".pdf", "=?utf-8?q?x?=.pdf"])
def test_an_extended_filename_has_no_plain_form(name: str) -> None:
    message = compose(attrs.evolve(BASE, attachments=(Attachment(b"x", name),)))
    well_formed(message)
    assert all(len(line) <= 78 for line in message.split(b"\r\n"))
    assert b"filename=" not in message and re.search(rb"filename\*(0\*)?=UTF-8''", message)
    assert [file.filename for file in mime.parse(message).files] == [name]
    [part] = stdlib(message).iter_attachments()
    assert part.get_filename() == name and not part["content-disposition"].defects


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\r", "\n", "\x7f", "\x85", "\x9b"])
def test_control_characters_are_refused_with_their_field(character: str) -> None:
    text = f"a{character}b"
    for field, draft in {
        "subject": attrs.evolve(BASE, subject=text),
        "headers": attrs.evolve(BASE, headers={"X-Note": text}),
        "attachments": attrs.evolve(BASE, attachments=(Attachment(b"x", text),)),
    }.items():
        with pytest.raises(ComposeError) as refused:
            compose(draft)
        assert refused.value.field == field


def test_a_tab_in_a_subject_is_white_space() -> None:
    assert mime.parse(compose(attrs.evolve(BASE, subject="a\tb"))).header("subject") == "a\tb"


@given(st.datetimes(timezones=st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))))
def test_dates_are_written_in_their_time_zone(when: datetime) -> None:
    assert rfc5322_date(when) == format_datetime(when)


def test_large_headers_are_refused_before_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(value: str) -> list[str]:
        raise AssertionError("work was done on it")

    monkeypatch.setattr("mailsvc.mail.encoded_word.encode", encode)
    for field, draft in {
        "headers": attrs.evolve(BASE, subject="é " * 200_000),
        "attachments": attrs.evolve(BASE, attachments=(Attachment(b"x", "a" * 1001),)),
    }.items():
        with pytest.raises(ComposeError) as refused:
            compose(draft)
        assert refused.value.field == field


def test_the_maximum_number_of_attachments_can_be_parsed() -> None:
    draft = attrs.evolve(BASE, html="<p>x", attachments=(Attachment(b"x", "a.txt"),) * 900)
    assert len(mime.parse(compose(draft)).files) == 900
    with pytest.raises(ComposeError, match="at most 900"):
        compose(attrs.evolve(draft, attachments=draft.attachments + draft.attachments[:1]))
