"""Addresses in API requests, and paths in SMTP commands."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import attrs
import pytest
from email_validator import EmailNotValidError, validate_email
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailsvc.mail import address
from mailsvc.mail.address import AddressError, Mailbox, NeedsSmtputf8, Path, parse_mailbox, parse_path


@pytest.mark.parametrize(
    ("written", "name", "address"),
    [
        ("a@b.example", "", "a@b.example"),
        ("<a@b.example>", "", "a@b.example"),
        ("  a@b.example ", "", "a@b.example"),
        ("Acme <a@b.example>", "Acme", "a@b.example"),
        ("Acme<a@b.example>", "Acme", "a@b.example"),
        ("Acme   Shop  <A.b+c@B.Example>", "Acme   Shop", "A.b+c@b.example"),
        ('"Doe, Jane" <a@b.example>', "Doe, Jane", "a@b.example"),
        ('"a<b" <a@b.example>', "a<b", "a@b.example"),
        (r'"say \"hi\" \\" <a@b.example>', 'say "hi" \\', "a@b.example"),
        ('Jane "JD" Doe <a@b.example>', 'Jane "JD" Doe', "a@b.example"),
        ('"x" y <a@b.example>', "x y", "a@b.example"),
        (r'"Doe, Jane" M. "\J" <a@b.example>', "Doe, Jane M. J", "a@b.example"),
        ('"x" =?utf-8?q?=C3=BC?= <a@b.example>', '"x" ü', "a@b.example"),
        ("Acme, Inc. <a@b.example>", "Acme, Inc.", "a@b.example"),
        ("Acme (Support) <a@b.example>", "Acme (Support)", "a@b.example"),
        ("Acme: News <a@b.example>", "Acme: News", "a@b.example"),
        ("a@b.example <a@b.example>", "a@b.example", "a@b.example"),
        ('"" <a@b.example>', "", "a@b.example"),
        ("Jürgen Müller <j@b.example>", "Jürgen Müller", "j@b.example"),
        ("=?utf-8?q?J=C3=BCrgen?= <j@b.example>", "Jürgen", "j@b.example"),
        ("👩\u200d🚀 Team <j@b.example>", "👩\u200d🚀 Team", "j@b.example"),
        ("a@müller.example", "", "a@xn--mller-kva.example"),
        ("a@MÜLLER.example", "", "a@xn--mller-kva.example"),
        ("a@xn--mller-kva.example", "", "a@xn--mller-kva.example"),
        ('"a b"@b.example', "", '"a b"@b.example'),
        ('"a@x"@b.example', "", '"a@x"@b.example'),
        ('Name <"a<b"@b.example>', "Name", '"a<b"@b.example'),
        ("a..b@docomo.ne.jp", "", '"a..b"@docomo.ne.jp'),
        ("Name <.a@docomo.ne.jp>", "Name", '".a"@docomo.ne.jp'),
        ("a.@docomo.ne.jp", "", '"a."@docomo.ne.jp'),
        ("Jürgen <a@b_c.Example>", "Jürgen", "a@b_c.example"),
        ("_@_b.c_.example", "", "_@_b.c_.example"),
        ("x" * 64 + "@b.example", "", "x" * 64 + "@b.example"),
        ("n" * 255 + " <a@b.example>", "n" * 255, "a@b.example"),
    ],
)
def test_mailboxes_are_parsed_in_every_form(written: str, name: str, address: str) -> None:
    mailbox = parse_mailbox(written)
    assert (mailbox.name, mailbox.address) == (name, address)
    assert not mailbox.needs_smtputf8
    assert parse_mailbox(mailbox.display) == mailbox


def test_a_unicode_local_part_is_kept_and_flagged() -> None:
    mailbox = parse_mailbox("用户@例え.example")
    assert mailbox.address == "用户@xn--r8jz45g.example"
    assert mailbox.needs_smtputf8


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a@b.example, c@d.example", "more than one"),
        ("A <a@b.example>, C <c@d.example>", "more than one"),
        ("a@b.example, C <c@d.example>", "more than one"),
        ('"A" a@b.example, "C" <c@d.example>', "more than one"),
        ("a@b.example;c@d.example", "more than one"),
        ("undisclosed-recipients:;", "Groups"),
        ("Friends: a@b.example, c@d.example;", "Groups"),
        ("a@b.example (work)", "Comments"),
        ("(work) a@b.example", "Comments"),
        ("a\r\nBcc: x@y.example <a@b.example>", "control"),
        ("Name\x00 <a@b.example>", "control"),
        ("Name\t<a@b.example>", "control"),
        ("Name\u2028 <a@b.example>", "control"),
        ("Name\x85 <a@b.example>", "control"),
        ("Name\ud800 <a@b.example>", "control"),
        ("=?utf-8?q?x=0d=0aBcc:?= <a@b.example>", "control"),
        ('"unbalanced <a@b.example>', "unmatched quotes"),
        ('"x" "unbalanced <a@b.example>', "unmatched quotes"),
        ("Name <a@b.example", "angle bracket"),
        ("Name a@b.example>", "Write"),
        ("a@localhost", "special-use"),
        ("a@printer.local", "special-use"),
        ("a@b", "full domain"),
        ("a@[127.0.0.1]", "bracket"),
        ("a@1.2.3.4", "full domain"),
        ("a@b..example", "period"),
        (".a@", "after the @"),
        ("x" * 62 + "..y@b.example", "longer"),
        ("a@-b.example", "hyphen"),
        ("a@b.exam_ple", "@"),
        ("a@ab--cd.example", "dashes"),
        ("@b.example", "@"),
        ("a", "@"),
        ("x" * 65 + "@b.example", "longer"),
        ("a@" + "b." * 130 + "example", "not a domain"),
        ("x" * 60 + "@" + ("y" * 60 + ".") * 3 + "y" * 14, "long"),
        ("n" * 5000 + " <a@b.example>", "too long"),
        ("n" * 999 + " <a@b.example>", "longer"),
    ],
)
def test_invalid_mailboxes_are_refused_with_a_reason(written: str, word: str) -> None:
    with pytest.raises(AddressError, match=word):
        parse_mailbox(written)


@given(st.from_regex(r"[a-zA-Z0-9.+_'-]{1,62}@[a-zA-Z0-9.-]{1,40}\.[a-zA-Z]{1,5}", fullmatch=True))
def test_the_hot_path_agrees_with_email_validator(text: str) -> None:
    local, _, domain = text.partition("@")
    quoted = text if all(local.split(".")) else f'"{local}"@{domain}'
    try:
        expected = validate_email(quoted, check_deliverability=False, test_environment=True, allow_quoted_local=True).normalized
    except EmailNotValidError:
        expected = None
    assert _address_or_none(text) == expected


def _address_or_none(text: str) -> str | None:
    try:
        return parse_mailbox(text).address
    except AddressError:
        return None


@given(st.text())
def test_any_text_gives_a_mailbox_or_an_error(text: str) -> None:
    try:
        mailbox = parse_mailbox(text + "@b.example" if "@" not in text else text)
    except AddressError:
        return
    assert parse_mailbox(mailbox.display) == mailbox


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=100))
def test_any_displayed_name_is_parsed_back(name: str) -> None:
    mailbox = Mailbox(name, "a", "b.example")
    assert parse_mailbox(mailbox.display) == mailbox


@pytest.mark.parametrize(
    "values",
    [
        ("a\r\nb", "a", "b.example"),
        ("", "a\r\nRCPT TO:<x@y>", "b.example"),
        ("", '"a\nb"', "b.example"),
        ("", "a b", "b.example"),
        ("", "a", "b.example\r\n"),
        ("", "a", "B.example"),
        ("", "a", "müller.example"),
        ("", "a", ""),
        ("", "", "b.example"),
        ("", "x" * 64, ("y" * 60 + ".") * 3 + "y" * 30),
    ],
)
def test_an_unsafe_mailbox_cannot_be_created(values: tuple[str, str, str]) -> None:
    with pytest.raises(AddressError):
        Mailbox(*values)
    with pytest.raises(AddressError):
        attrs.evolve(Mailbox("n", "l", "d.example"), name=values[0], local=values[1], domain=values[2])


def test_names_are_parsed_in_linear_time() -> None:
    started = time.process_time()
    for text in (
        "a" + " " * 2200,
        "a " * 1100 + "@",
        '"' + "\\" * 2200,
        "a." * 1100 + "@b.example",
        "<" * 2200,
        "=?" * 1000 + " <a@b.example>",
    ):
        with pytest.raises(AddressError):
            parse_mailbox(text)
    assert time.process_time() - started < 0.5


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "rest"),
    [
        (b"<a@b.example>", Path("a", "b.example"), b""),
        (b"<A.b@B.Example> SIZE=1 BODY=8BITMIME", Path("A.b", "b.example"), b"SIZE=1 BODY=8BITMIME"),
        (b" <a@b.example>", Path("a", "b.example"), b""),
        (b"<>", Path(), b""),
        (b" <> SIZE=1", Path(), b"SIZE=1"),
        (b"<@a.example,@b.example:c@d.example>", Path("c", "d.example"), b""),
        (b'<"a b"@d.example>', Path('"a b"', "d.example"), b""),
        (b'<"a\\"@x"@d.example>', Path('"a\\"@x"', "d.example"), b""),
        (b'<"a>b"@d.example> X=1', Path('"a>b"', "d.example"), b"X=1"),
        (b'<""@d.example>', Path('""', "d.example"), b""),
        (b'<"A.b"@d.example>', Path("A.b", "d.example"), b""),
        (b'<"\\a"@d.example>', Path("a", "d.example"), b""),
        (b'<"\\a b\\\\c"@d.example>', Path('"a b\\\\c"', "d.example"), b""),
        (b'<"a..b"@d.example>', Path('"a..b"', "d.example"), b""),
        (b"<a..b@d.example>", Path('"a..b"', "d.example"), b""),
        (b"<.a@d.example> NOTIFY=NEVER", Path('".a"', "d.example"), b"NOTIFY=NEVER"),
        (b"<a.@d_e.Example>", Path('"a."', "d_e.example"), b""),
        (b"<a@[127.0.0.1]>", Path("a", "[127.0.0.1]"), b""),
        (b"<a@[IPv6:::1]>", Path("a", "[IPv6:::1]"), b""),
        (b"<a@[ipv6:0:0:0:0:0:0:0:1]>", Path("a", "[IPv6:::1]"), b""),
        (b"<postmaster>", Path("postmaster", ""), b""),
        (b"<PostMaster>", Path("PostMaster", ""), b""),
        (b"<a@localhost>", Path("a", "localhost"), b""),
        (b"<a@xn--mller-kva.example>", Path("a", "xn--mller-kva.example"), b""),
        (b"<" + b"x" * 64 + b"@b.example>", Path("x" * 64, "b.example"), b""),
        (b"<b-abc=x.example@rp.example>", Path("b-abc=x.example", "rp.example"), b""),
    ],
)
@pytest.mark.parametrize("smtputf8", [False, True])
def test_paths_are_parsed(text: bytes, path: Path, rest: bytes, smtputf8: bool) -> None:
    assert parse_path(text, smtputf8) == (path, rest)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a@b.example",
        b"<a@b.example",
        b"a@b.example>",
        b"<a@b.example>x",
        b"<a@b.example>\tSIZE=1",
        b"< a@b.example>",
        b"<a@b.example >",
        b"  <a@b.example>",
        b"<a@b@c.example>",
        b"<a b@c.example>",
        b'<a"b@x.example>',
        b"<<a@b.example>>",
        b"< >",
        b"<a>",
        b"<@b.example>",
        b"<a@>",
        b"<a@b..example>",
        b"<a@.example>",
        b"<a@b.example.>",
        b"<a@-b.example>",
        b"<a..b>",
        b"<" + b"x" * 62 + b"..y@b.example>",
        b"<a@b.example,c@d.example>",
        b'<"a\nRCPT TO:<x@y>\n"@x.example>',
        b'<"a\rb"@x.example>',
        b'<"a\x00b"@x.example>',
        b'<"a\x7fb"@x.example>',
        b'<"a\\\nb"@x.example>',
        b"<a\x00@b.example>",
        b"<a@b.example\r\n>",
        b"<a@[127.0.0.256]>",
        b"<a@[127.1]>",
        b"<a@[IPv6:127.0.0.1]>",
        b"<a@[IPv6:fe80::1%eth0]>",
        b"<a@[Tag:x]>",
        b"<a@[]>",
        b"<" + b"x" * 65 + b"@b.example>",
        b"<a@" + b"y" * 64 + b".example>",
        b"<a@" + (b"y" * 62 + b".") * 4 + b"example>",
        b"<" + b"x" * 64 + b"@" + (b"y" * 62 + b".") * 3 + b"example>",
        b"<\xff@b.example>",
        b"<a\xc0\xaf@b.example>",
        b"<a@\xed\xa0\x80.example>",
        b"<a@xn--a.example>",
    ],
)
@pytest.mark.parametrize("smtputf8", [False, True])
def test_invalid_paths_are_refused(text: bytes, smtputf8: bool) -> None:
    with pytest.raises(AddressError) as caught:
        parse_path(text, smtputf8)
    assert not isinstance(caught.value, NeedsSmtputf8)
    assert not (re.fullmatch(rb'<[^<>"\x00-\x1f]*>', text) and "angle brackets" in str(caught.value))  # it has them


def test_non_ascii_paths_need_smtputf8() -> None:
    text = "<用户@例え.example> SMTPUTF8".encode()
    assert parse_path(text, True) == (Path("用户", "xn--r8jz45g.example"), b"SMTPUTF8")
    assert parse_path(text, True)[0].needs_smtputf8
    with pytest.raises(NeedsSmtputf8):
        parse_path(text, False)


@pytest.mark.parametrize(
    ("text", "null", "literal", "qualified"),
    [
        (b"<>", True, False, False),
        (b"<postmaster>", False, False, False),
        (b"<a@localhost>", False, False, False),
        (b"<a@[127.0.0.1]>", False, True, False),
        (b"<a@127.0.0.1>", False, False, False),
        (b"<a@b.example>", False, False, True),
    ],
)
def test_literals_and_unqualified_domains_are_recognized(text: bytes, null: bool, literal: bool, qualified: bool) -> None:
    path, _ = parse_path(text, False)
    assert (path.null, path.literal, path.qualified) == (null, literal, qualified)


@given(st.binary(max_size=60), st.booleans())
def test_any_parsed_path_is_safe_in_a_command(data: bytes, smtputf8: bool) -> None:
    for text in (b"<" + data + b">", b"<" + data + b"@b.example>", b'<"' + data + b'"@b.example>'):
        try:
            path, _ = parse_path(text, smtputf8)
        except AddressError:
            continue
        assert not any(ord(c) < 32 or ord(c) == 127 for c in path.address)
        assert path.address.isascii() or smtputf8
        assert parse_path(f"<{path.address}>".encode(), True) == (path, b"")


def outcome(parse: Callable[[bytes, bool], object], text: bytes) -> object:
    try:
        return parse(text, False)
    except AddressError as error:
        return type(error), str(error)


PIECES = [b"a", b"B", b"9", b".", b"-", b"@", b"xn--", b"<", b">", b" ", b'"', b"_", b"\xc3\xa9", b"[", b"\0"]


def long(local: int, address: int) -> bytes:
    """So many bytes before the @, and in all."""
    domain = b"b" * 60 + (b"." + b"c" * 60) * 2 + b"."
    return b"a" * local + b"@" + domain + b"d" * (address - local - 1 - len(domain))


NEARLY_PLAIN = st.one_of(
    st.from_regex(rb"[a-z.+]{1,4}@[A-Za-z0-9.-]{1,12}", fullmatch=True),
    st.lists(st.sampled_from(PIECES)).map(b"".join),
    st.builds(long, st.integers(62, 66), st.integers(253, 257)),
)


@settings(max_examples=200)
@given(NEARLY_PLAIN, st.sampled_from([b"", b" ", b"  SIZE=1 X=\xff ", b"x", b"\t", b" \n"]))
@example(b"a@b.example", b" SIZE=1")
@example(b"a@axn--b.example", b"")
def test_the_hot_path_agrees_with_the_full_path_parser(inside: bytes, rest: bytes) -> None:
    text = b"<" + inside + b">" + rest
    assert outcome(parse_path, text) == outcome(address._parse_any_path, text)


@pytest.mark.parametrize(
    "text",
    [
        b"a" * 16_384,
        b"a." * 8_192,
        b"<" + b"a." * 8_192,
        b"<" + b"a." * 8_192 + b"@b.example>",
        b"<a@" + b"b." * 8_192 + b">",
        b'<"' + b"\\" * 16_384,
        b'<"' + b'\\"' * 8_192,
        b"<" + b'""' * 8_192,
        b"<" + b"@a," * 5_000 + b":c@d.example>",
        b"<@" * 8_192,
        b" " * 16_384,
        b"<" * 16_384,
        b"<a@[" + b"1." * 8_192 + b"]>",
        "<é".encode() + "é".encode() * 8_192 + b">",
    ],
)
def test_a_path_of_16_kb_is_refused_in_linear_time(text: bytes) -> None:
    started = time.process_time()
    for _ in range(10):
        with pytest.raises(AddressError):
            parse_path(text, True)
    assert time.process_time() - started < 0.1  # a millisecond is 40 times what it takes; quadratic time is seconds
