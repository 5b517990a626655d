"""Header fields: folding, encoded words, custom fields, parsing blocks."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from email import message_from_bytes
from email.header import decode_header, make_header
from email.policy import default
from email.utils import getaddresses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailsvc.mail import encoded_word, header
from mailsvc.mail.address import Mailbox, parse_mailbox
from mailsvc.mail.header import Field, HeaderError
from tests.growth import assert_linear

TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]) | st.just("\t"))
PIECES = [*'aé日👩\u200d🚀 =?_\t"\\<>,:;()@\u2028\u202e', "word ", " =?utf-8?q?x?= ", "x" * 90]
ENCODED_WORD = re.compile(r"(?<!\S)=\?[^?\s]+\?[bq]\?[^?\s]*\?=(?!\S)")
WIDE = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def well_formed(field: str) -> None:
    """One field in ASCII, its lines within the limits, continued by space."""
    assert field.endswith("\r\n") and field.isascii()
    lines = field[:-2].split("\r\n")
    assert not re.search(r"[\r\n]", "".join(lines))
    assert all(len(line) <= header.LONGEST_LINE for line in lines)
    assert all(line.startswith(" ") and line.strip() for line in lines[1:])
    assert all(len(line) <= 76 for line in lines if ENCODED_WORD.search(line))  # 2047 §2
    assert all(len(word) <= 75 for word in re.findall(r"=\?\S+\?=", field))


def read(field: str) -> Field:
    [only] = header.parse_fields(field.encode())
    return only


@given(TEXT | WIDE)
def test_any_subject_is_decoded_back(value: str) -> None:
    field = header.unstructured("Subject", value)
    well_formed(field)
    assert all(len(line) <= 78 for line in field.split("\r\n"))
    assert read(field).value == value


@given(TEXT | WIDE)
def test_any_subject_is_decoded_back_by_the_standard_library(value: str) -> None:
    parsed = message_from_bytes(header.unstructured("Subject", value).encode(), policy=default)
    assert parsed["subject"] == value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("Hi", "Subject: Hi\r\n"),
        ("", "Subject:\r\n"),
        ("Grüße aus Köln", "Subject: =?utf-8?b?R3LDvMOfZQ==?= aus =?utf-8?b?S8O2bG4=?=\r\n"),
        ("=?utf-8?q?x?=", "Subject: =?utf-8?b?PT91dGYtOD9xP3g/PQ==?=\r\n"),
        (" hi", "Subject: =?utf-8?q?_hi?=\r\n"),
        ("a\tb c", "Subject: =?utf-8?q?a=09b?= c\r\n"),
        ("日本 語", "Subject: =?utf-8?b?5pel5pysIOiqng==?=\r\n"),
        ("word " * 14 + "word word", "Subject: " + "word " * 12 + "word\r\n word word word\r\n"),
    ],
)
def test_subjects_are_encoded(value: str, field: str) -> None:
    assert header.unstructured("Subject", value) == field


@pytest.mark.parametrize("value", ["a\r\nBcc: x@y.example", "a\nb", "a\rb", "a\x00b", "a\ud800b", "\r\n", "x" * 80 + "\n"])
def test_line_breaks_are_refused_everywhere(value: str) -> None:
    with pytest.raises(HeaderError, match="line breaks"):
        header.unstructured("Subject", value)
    with pytest.raises(HeaderError, match="line breaks"):
        header.custom("X-Any", value)
    with pytest.raises(HeaderError, match="line breaks"):
        header.check_custom({"X-Any": value})


def test_text_that_looks_encoded_is_kept() -> None:
    assert read(header.unstructured("Subject", "a%0d%0aBcc: x \\r\\n")).value == "a%0d%0aBcc: x \\r\\n"


def test_an_emoji_is_not_split_between_words() -> None:
    for pad in range(60, 80):
        value = "x" * pad + "👩\u200d🚀" * 3
        field = header.unstructured("Subject", value)
        well_formed(field)
        for word in re.findall(r"=\?\S+\?=", field):
            assert "\ufffd" not in encoded_word.decode(word)
        assert read(field).value == value


# --- addresses -------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=80).map(str.strip)


@given(st.lists(NAMES, min_size=1, max_size=8))
def test_any_display_names_are_decoded_back(names: list[str]) -> None:
    boxes = [Mailbox(name, f"user{number}", "b.example") for number, name in enumerate(names)]
    field = header.mailboxes("To", boxes)
    well_formed(field)
    parsed = getaddresses([field.removeprefix("To:").replace("\r\n", "")])
    assert [address for _, address in parsed] == [box.address for box in boxes]
    assert [str(make_header(decode_header(name))) if "=?" in name else name for name, _ in parsed] == names


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("a@b.example", "From: a@b.example\r\n"),
        ("Acme Shop <a@b.example>", "From: Acme Shop <a@b.example>\r\n"),
        ("Acme, Inc. <a@b.example>", 'From: "Acme, Inc." <a@b.example>\r\n'),
        (r'"\"A\" \\" <a@b.example>', 'From: "\\"A\\" \\\\" <a@b.example>\r\n'),
        ("Jürgen <a@b.example>", "From: =?utf-8?q?J=C3=BCrgen?= <a@b.example>\r\n"),
        ('"a  b" <a@b.example>', 'From: "a  b" <a@b.example>\r\n'),
        ('"=?x?=" <a@b.example>', "From: =?utf-8?b?PT94Pz0=?= <a@b.example>\r\n"),
    ],
)
def test_from_fields_are_written(written: str, field: str) -> None:
    assert header.mailboxes("From", [parse_mailbox(written)]) == field


def test_long_recipient_lists_are_folded() -> None:
    boxes = [Mailbox(f"Recipient Number {n}", f"recipient{n}", "b.example") for n in range(50)]
    field = header.mailboxes("To", boxes)
    well_formed(field)
    assert all(len(line) <= 78 for line in field.split("\r\n"))
    assert len(message_from_bytes(field.encode(), policy=default)["to"].addresses) == 50


# --- custom fields ---------------------------------------------------------------------------------------------------


OURS = ["From", "TO", "cc", "Bcc", "Subject", "Date", "Message-ID", "MIME-Version", "Sender"]
OURS += ["Content-Type", "Content-Transfer-Encoding", "Content-ID", "DKIM-Signature", "ARC-Seal"]
OURS += ["Received", "Received-SPF", "Return-Path", "Authentication-Results", "Resent-From"]


@pytest.mark.parametrize("name", OURS)
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(HeaderError, match="cannot be set"):
        header.check_custom({name: "x"})


@pytest.mark.parametrize("name", ["", "X Y", "X:Y", "X\r\nBcc", "Bcc: x@y.example\r\nX", "Xé", "X\x00", "X\t", "x" * 77])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(HeaderError, match="header name"):
        header.check_custom({name: "x"})


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(HeaderError, match="twice"):
        header.check_custom({"X-Ref": "1", "x-ref": "2"})


@pytest.mark.parametrize(
    ("unsubscribe", "post", "fine"),
    [
        ("<https://b.example/u?1>", "List-Unsubscribe=One-Click", True),
        ("<mailto:u@b.example>, <https://b.example/u?1>", "List-Unsubscribe=One-Click", True),
        ("<mailto:u@b.example>", "List-Unsubscribe=One-Click", False),
        ("<http://b.example/u>", "List-Unsubscribe=One-Click", False),
        ("<https://b.example/u>, <https://b.example/v>", "List-Unsubscribe=One-Click", False),
        ("<https://b.example/u>", "One-Click", False),
        (None, "List-Unsubscribe=One-Click", False),
    ],
)
def test_one_click_unsubscribe_needs_both_fields(unsubscribe: str | None, post: str, fine: bool) -> None:
    headers = {"List-Unsubscribe-Post": post} | ({"List-Unsubscribe": unsubscribe} if unsubscribe else {})
    if fine:
        header.check_custom(headers)
    else:
        with pytest.raises(HeaderError, match="List-Unsubscribe-Post"):
            header.check_custom(headers)


@given(TEXT | WIDE)
@example("0" * 75 + "=?")  # no encoded word
def test_custom_values_are_folded_and_encoded(value: str) -> None:
    field = header.custom("X-Any", value)
    well_formed(field)
    if "=?" not in value:
        assert read(field).value == value.replace("\t", " ").strip(" ")


def test_a_structured_custom_value_is_unchanged() -> None:
    url = "<https://b.example/" + "u" * 300 + ">"
    field = header.custom("List-Unsubscribe", f"<mailto:u@b.example>,\t{url}")
    assert field == f"List-Unsubscribe: <mailto:u@b.example>,\r\n {url}\r\n"
    assert header.custom("Reply-To", "Jürgen <j@b.example>") == "Reply-To: =?utf-8?q?J=C3=BCrgen?= <j@b.example>\r\n"


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ('"Müller, Anna" <a@b.example>', ["Müller, Anna <a@b.example>"]),
        ('"Anna, Müller" <a@b.example>,c@d.example', ["Anna, Müller <a@b.example>", " <c@d.example>"]),
        ("Zoë <z@b.example>,Ö <o@b.example>", ["Zoë <z@b.example>", "Ö <o@b.example>"]),
        ('"J \\"x\\" Ö"<j@b.example>, "A, B" <a@b.example>', ['J "x" Ö <j@b.example>', "A, B <a@b.example>"]),
        ("team: Ö <o@b.example>, =?utf-8?q?=C3=A9?= é <e@b.example>;", ["Ö <o@b.example>", "é é <e@b.example>"]),
        ("o@b.example (Ö), Ö (x, y) <p@b.example>", [" <o@b.example>", "Ö <p@b.example>"]),
        ("Ö " * 40 + "<o@b.example>", [("Ö " * 40).strip() + " <o@b.example>"]),
    ],
)
def test_a_custom_address_field_keeps_its_addresses(value: str, addresses: list[str]) -> None:
    field = header.custom("Reply-To", value)
    well_formed(field)
    parsed = message_from_bytes(field.encode(), policy=default)["Reply-To"].addresses
    # Python takes the fold within a long name for a space.
    assert [f"{each.display_name} <{each.addr_spec}>".replace("  ", " ") for each in parsed] == addresses


@pytest.mark.parametrize("value", ["Ö <ö@b.example>", "o@bö.example", "a@b.example, Ö <o@ö.example>"])
def test_a_custom_address_field_needs_ascii_addresses(value: str) -> None:
    with pytest.raises(HeaderError, match="An address in the header Reply-To must be in ASCII"):
        header.custom("Reply-To", value)


@given(st.text('aö ",<>()\\@:;=?', max_size=60))
def test_any_custom_address_field_is_ascii(value: str) -> None:
    try:
        field = header.custom("Reply-To", value)
    except HeaderError:
        return
    assert field.isascii() and re.fullmatch(r"Reply-To:(?: [^\r\n]*(?:\r\n [^\r\n]+)*)?\r\n", field)


@pytest.mark.parametrize("unit", ['"', "(", "<", ",ö", 'ö"', "ö(", "ö <a@b.example>,", "\\", "@"])
def test_custom_address_fields_take_linear_time(unit: str) -> None:
    assert_linear(lambda size: "ö" + unit * (size // len(unit)), _custom, 30_000)


def _custom(value: str) -> None:
    with suppress(HeaderError):
        header.custom("Reply-To", value)


@pytest.mark.parametrize(
    ("value", "written", "shown"),
    [
        ("=?utf-8?q?=C3=A9?= é", "=?utf-8?q?=C3=A9?= =?utf-8?b?IMOp?=", "é é"),
        ("é  =?utf-8?q?=C3=A9?= x", "=?utf-8?b?w6kgIA==?=  =?utf-8?q?=C3=A9?= x", "é  é x"),
        ("x?= é =?x", "x?= =?utf-8?b?w6k=?= =?x", "x?= é =?x"),
    ],
)
def test_encoded_words_from_the_client_are_kept(value: str, written: str, shown: str) -> None:
    field = header.custom("X-Any", value)
    assert field == f"X-Any: {written}\r\n"
    assert read(field).value == shown


def test_a_word_longer_than_any_line_is_refused() -> None:
    with pytest.raises(HeaderError, match="too long for a line"):
        header.custom("X-Any", "x" * 998)
    assert header.custom("X-Any", "x" * 997) == "X-Any:\r\n " + "x" * 997 + "\r\n"


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_header_block_is_parsed() -> None:
    block = b"From: a@b.example\r\nSubject:\r\n folded\r\n\tagain\r\nX-Obs \t: v\r\nEmpty:\r\n"
    assert header.parse_fields(block) == [
        Field("From", b" a@b.example"),
        Field("Subject", b"\r\n folded\r\n\tagain"),
        Field("X-Obs", b" v"),
        Field("Empty", b""),
    ]
    assert header.parse_fields(block)[1].value == "folded\tagain"


def split_slowly(block: bytes) -> list[tuple[bytes, bytes, bytes]] | None:
    """One line after the other; None: one is no field."""
    fields = []
    for line in re.split(rb"\r\n(?![ \t])", block.removesuffix(b"\r\n")) if block else []:
        found = re.fullmatch(rb"([!-9;-~]+)[ \t]*:(.*)", line, re.DOTALL)
        if found is None or re.search(rb"\r(?!\n)|(?<!\r)\n", found[2]):
            return None
        fields.append((line + b"\r\n", found[1], found[2]))
    return fields


PIECES = [b"A", b"b-C", b" ", b"\t", b":", b"\r\n", b"\r\n", b"\r\n ", b"\r", b"\n", b"\0", b"\xff", b"X: y\r\n"]
WRITTEN = [b"A: b\r\n", b"Long :\tc\r\n d\r\n\t\r\n", b"e:\r\n", b"F:\xe9"]
BLOCKS = st.one_of(st.lists(st.sampled_from(PIECES)), st.lists(st.sampled_from(WRITTEN))).map(b"".join)


@settings(max_examples=200)
@given(BLOCKS)
@example(b"")
@example(b"\r\n")
@example(b"A: b\r\n\r\n")
@example(b"A: b\r\n ")
@example(b"A: b\r")
def test_splitting_agrees_with_a_line_by_line_parser(block: bytes) -> None:
    slow = split_slowly(block)
    if slow is None:
        with pytest.raises(HeaderError, match="a line that is not a field"):
            header.split_fields(block)
        return
    assert header.split_fields(block) == slow
    assert header.parse_fields(block) == header.parse_fields(block, strict=False) == [Field(n.decode(), raw) for _, n, raw in slow]


@pytest.mark.parametrize("block", [b"a" * 250_000, b"a\n" * 125_000, b"a:" + b"\r\n b" * 60_000 + b"\r", b"a:\n" * 80_000, b"\n" * 250_000])
def test_an_invalid_block_is_refused_in_linear_time(block: bytes) -> None:
    began = time.process_time()
    with pytest.raises(HeaderError):
        header.split_fields(block)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "line", [b"no colon", b": no name", b"a b: space in name", b"\xc3\xa9: x", b" begins folded", b"A: x\nBcc: y", b"A: x\ry"]
)
def test_lines_that_are_not_fields_are_refused(line: bytes) -> None:
    block = b"From: a@b.example\r\n" + line + b"\r\nTo: c@d.example\r\n"
    if line.startswith(b" "):
        block = line + b"\r\nTo: c@d.example\r\n"
    with pytest.raises(HeaderError, match="not a field"):
        header.parse_fields(block)
    assert header.parse_fields(block, strict=False)[-1] == Field("To", b" c@d.example")


@pytest.mark.parametrize(
    ("message", "block", "body"),
    [
        (b"A: b\r\n\r\nbody", b"A: b\r\n", b"body"),
        (b"A: b\r\n\r\n", b"A: b\r\n", b""),
        (b"A: b\r\n", b"A: b\r\n", b""),
        (b"\r\nbody", b"", b"body"),
        (b"", b"", b""),
        (b"A: b\r\n\r\n\r\n\r\n", b"A: b\r\n", b"\r\n\r\n"),
    ],
)
def test_a_message_is_split_into_header_and_body(message: bytes, block: bytes, body: bytes) -> None:
    found, start = header.split_message(message)
    assert (found, message[start:]) == (block, body)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("=?iso-8859-1?Q?a=E9?=", "aé"),
        ("=?ISO-8859-1*de?Q?a=E9?=", "aé"),
        ("=?utf-8?B?w6k?= =?utf-8?b?w6k=?=", "éé"),
        ("=?utf-8?b?wx==?= tail", "\ufffd tail"),
        ("=?utf-8?q?=C3?= =?utf-8?q?=A9?=", "é"),
        ("=?utf-8?q?a?= b =?utf-8?q?c?=", "a b c"),
        ("=?utf-8?q?a?=\t =?iso-8859-1?q?=E9?=", "aé"),
        ("=?nonsense?q?a=E9?=", "aé"),
        ("=?punycode?q?a?=", "a"),
        ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
        ("=?utf-8?b?*?=", ""),
        ("=?utf-8?q?a_b?=", "a b"),
        ("=?", "=?"),
        ("=?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", "日本"),
    ],
)  # fmt: skip
def test_encoded_words_of_other_software_are_decoded(written: str, text: str) -> None:
    assert encoded_word.decode(written) == text


@given(st.text(st.sampled_from(list("=?utf-8bq?iso-2022-jp AZ+/")), max_size=80))
def test_decoding_never_raises(text: str) -> None:
    assert isinstance(encoded_word.decode(text), str)
