"""Parsing messages from any software."""

from __future__ import annotations

import binascii
import time
import tracemalloc
from email.message import EmailMessage
from email.policy import SMTP

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.mail import mime, parameters
from mailsvc.mail.mime import File, MimeError, parse


def test_messages_of_other_software_are_parsed() -> None:
    message = EmailMessage(policy=SMTP)
    message["From"] = "Jürgen <j@b.example>"
    message["Subject"] = "Grüße " * 20
    message.set_content("plain é\n", cte="8bit")
    message.add_alternative("<p>é</p>\n", subtype="html", charset="iso-8859-1")
    message.add_attachment(b"\x00\xff" * 100, maintype="image", subtype="png", filename="Straße – 日本.png", cid="<x@y>")
    parsed = parse(message.as_bytes())
    assert parsed.header("FROM") == "Jürgen <j@b.example>"
    assert parsed.header("subject") == ("Grüße " * 20).strip()
    assert parsed.header("to") is None
    assert (parsed.text, parsed.html) == ("plain é\n", "<p>é</p>\n")
    assert parsed.files == (File("Straße – 日本.png", "image/png", "x@y", "attachment", b"\x00\xff" * 100),)


def mixed(*parts: bytes, boundary: bytes = b"b", end: bytes = b"\r\n--b--\r\n") -> bytes:
    head = b'From: a@b.example\r\nContent-Type: multipart/mixed; boundary="' + boundary + b'"\r\n\r\npreamble'
    return head + b"".join(b"\r\n--" + boundary + b"\r\n" + part for part in parts) + end


@given(st.lists(st.sampled_from([b"aGkx", b"aGkxaGkx", b"aG kx", b"aGkxa", b"Gkx", b"aGk=", b"aA==", b"=", b"", b"!"]), max_size=12))
def test_base64_is_decoded_in_slices_like_a_whole(lines: list[bytes]) -> None:
    message = b"Content-Transfer-Encoding: base64\r\n\r\n" + b"\r\n".join(lines)
    whole = parse(message)
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 6, 16):
            patch.setattr(mime, "_SLICE", size)
            assert parse(message) == whole


@pytest.mark.parametrize(
    ("content_type", "text", "html"),
    [
        (b"text/plain; charset=koi8-r (Cyrillic)", "привет", None),  # 2045 §5.1
        (b"text/html (markup); charset=koi8-r", None, "привет"),
        (b"text; charset=koi8-r", "привет", None),  # 2045 §5.2: invalid, so it is text/plain
    ],
)
def test_comments_and_invalid_types(content_type: bytes, text: str | None, html: str | None) -> None:
    parsed = parse(b"Content-Type: " + content_type + b"\r\n\r\n" + "привет".encode("koi8-r"))
    assert (parsed.text, parsed.html, parsed.files, parsed.defects) == (text, html, (), ())


@pytest.mark.parametrize(
    ("message", "text", "html", "files"),
    [
        (b"", "", None, 0),
        (b"\r\n", "", None, 0),
        (b"no header at all", "", None, 0),
        (b"A: b\r\n\r\nHi\r\n", "Hi", None, 0),
        (b"A: b\n\nHi\nyou\n", "Hi\nyou", None, 0),
        (b"Content-Type: text/html\r\n\r\n<p>\r\n", None, "<p>", 0),
        (b"Content-Type: TEXT/HTML; CHARSET=ISO-8859-1\r\n\r\n\xe9\r\n", None, "é", 0),
        (b"Content-Type: text/plain; charset=nonsense\r\n\r\n\xc3\xa9\r\n", "é", None, 0),
        (b"Content-Type: text/plain; charset=us-ascii\r\n\r\n\xc3\xa9\r\n", "é", None, 0),
        (b"Content-Type: image/png\r\n\r\nx\r\n", None, None, 1),
        (b"Content-Disposition: attachment\r\n\r\nx\r\n", None, None, 1),
        (mixed(b"\r\none", b"\r\ntwo"), "one", None, 1),
        (mixed(b"\r\none", b"Content-Type: text/html\r\n\r\n<p>"), "one", "<p>", 0),
        (mixed(b"Content-ID: <1@x>\r\n\r\none", b"Content-ID: <2@x>\r\nContent-Type: text/html\r\n\r\n<p>"), "one", "<p>", 0),
        (mixed(b"Content-Type: text/html\r\n\r\n<p>", b"Content-ID: <terms@x>\r\n\r\nterms"), None, "<p>", 1),
        (mixed(b"Content-Type: text/html\r\n\r\n<p>", b"\r\ntwo"), "two", "<p>", 0),
        (mixed(b"\r\none", end=b""), "one", None, 0),
        (mixed(b"\r\none", end=b"\r\n--b--"), "one", None, 0),
        (mixed(b"\r\none", end=b"\r\n--b--garbage\r\n--b\r\n\r\ntwo"), "one", None, 0),
        (mixed(b"\r\none\r\n--bc\r\n--b x"), "one\n--bc\n--b x", None, 0),
        (mixed(b"\r\none").replace(b"--b\r\n", b"--b \t\r\n"), "one", None, 0),
        (mixed(b"", b"\r\ntwo"), "", None, 1),
        (mixed(), None, None, 0),
        (b"Content-Type: multipart/mixed\r\n\r\n--\r\n\r\nx\r\n", None, None, 1),
        (b"Content-Transfer-Encoding: base64\r\n\r\naGk=\r\n", "hi", None, 0),
        (b"Content-Transfer-Encoding: BASE64\r\n\r\naGk\r\n", "hi", None, 0),
        (b"Content-Transfer-Encoding: base64\r\n\r\naGkxM\r\n", "hi1", None, 0),
        (b"Content-Transfer-Encoding: base64\r\n\r\n!!!!\r\n", "", None, 0),
        (b"Content-Transfer-Encoding: quoted-printable\r\n\r\na=3Db=\r\nc=zz\r\n", "a=bc=zz", None, 0),
        (b"Content-Transfer-Encoding: x-unknown\r\n\r\nhi\r\n", "hi", None, 0),
        (b"garbage line\r\nContent-Type: text/html\r\n\r\nx\r\n", None, "x", 0),
    ],
)
def test_malformed_messages_are_parsed(message: bytes, text: str | None, html: str | None, files: int) -> None:
    parsed = parse(message)
    assert (parsed.text, parsed.html, len(parsed.files)) == (text, html, files)


def test_inline_parts_are_recognized() -> None:
    def disposition(fields: bytes) -> str:
        return parse(b"Content-Type: image/png\r\n" + fields + b"\r\nx").files[0].disposition

    assert disposition(b"Content-ID: <a>\r\n") == "inline"
    assert disposition(b"Content-Disposition: INLINE\r\n") == "inline"
    assert disposition(b"Content-ID: <a>\r\nContent-Disposition: attachment\r\n") == "attachment"
    assert disposition(b"") == "attachment"


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed(data: bytes) -> None:
    parse(data)
    parse(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" + data + b"\r\n--b--\r\n")


FRAGMENTS = [b"\r\n", b"\r\n\r\n", b"\n", b"--b", b"--b--", b"Content-Type: ", b"multipart/mixed; boundary=b", b"text/html", b"; charset="]
FRAGMENTS += [
    b"utf-7",
    b"idna",
    b"Content-Transfer-Encoding: base64",
    b"quoted-printable",
    b"=",
    b'"',
    b"; filename*0*=",
    b"'",
    b"%e9",
    b"=?q?",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map(b"".join))
def test_any_mixture_is_parsed(message: bytes) -> None:
    parsed = parse(message)
    assert all(isinstance(field.value, str) for field in parsed.fields)


def test_depth_and_number_of_parts_are_limited() -> None:
    deep = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(10_000))
    with pytest.raises(MimeError, match="layers"):
        parse(deep)
    with pytest.raises(MimeError, match="parts"):
        parse(mixed(*[b"\r\nx"] * 1001))
    assert len(parse(mixed(*[b"\r\nx"] * 1000)).files) == 999


@pytest.mark.parametrize(
    "body",
    [b"--b" * 300_000, b"\r\n--b x" * 150_000, b"\r\n--b" + b" " * 1_000_000, b"\n" * 1_000_000, b"a: b\r\n" * 100_000],
)
def test_a_megabyte_is_parsed_in_linear_time(body: bytes) -> None:
    started = time.process_time()
    parse(b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n' + body)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("text/plain", "text/plain", {}),
        ("Text/Plain ; Charset=UTF-8; x", "text/plain", {"charset": "UTF-8"}),
        ('a/b; name="x;\\"y\\" z"', "a/b", {"name": 'x;"y" z'}),
        ("a/b; name=x y", "a/b", {"name": "x y"}),
        ('a/b; name="unterminated', "a/b", {"name": "unterminated"}),
        ("a/b; name==?utf-8?q?=C3=A9?=", "a/b", {"name": "é"}),
        ("a/b; name*=iso-8859-1'de'%E9", "a/b", {"name": "é"}),
        ("a/b; name*=%E9", "a/b", {"name": "\ufffd"}),
        ('a/b; name*1=b; name*0=a; name="c"', "a/b", {"name": "ab"}),
        ("a/b; name*0*=utf-8''%C3; name*1*=%A9; name*2=%41", "a/b", {"name": "é%41"}),
        ("a/b; name*0=a; name*2=c", "a/b", {"name": "a"}),
        ("a/b; name=a; name=b", "a/b", {"name": "a"}),
        ("; name=a", "", {"name": "a"}),
        ("a/b; *=x; *0=y", "a/b", {"*": "x", "*0": "y"}),
    ],
)
def test_parameters_of_other_software_are_parsed(field: str, value: str, named: dict[str, str]) -> None:
    assert parameters.decode(field) == (value, named)


@given(st.text(st.characters(blacklist_categories=["Cs"])))
@example("=?utf-8?q?x?=.pdf")
@example(" a")
def test_any_parameter_is_parsed_back(value: str) -> None:
    written = parameters.encode("filename", value)
    assert all(part.isascii() and len(part) <= 76 and "\r" not in part and "\n" not in part for part in written)
    assert parameters.decode("attachment; " + "; ".join(written)) == ("attachment", {"filename": value})


def test_the_error_message_names_the_limits() -> None:
    assert (mime.DEPTH, mime.PARTS) == (50, 1000)


@given(st.lists(st.sampled_from([b"a", b" ", b"=\r\n", b"=3D", b"=C3=A9", b"\r\n", b"x" * 30]), max_size=60), st.integers(4, 40))
def test_quoted_printable_in_slices_is_the_same(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mime, "_SLICE", size)
        assert b"".join(map(binascii.a2b_qp, mime._encoded_slices(data))) == binascii.a2b_qp(data)


def test_the_html_of_deep_parts_is_copied_once() -> None:
    levels = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (n, n) for n in range(50))
    message = levels + b"Content-Type: text/html\r\n\r\n" + b"<p>x</p>\r\n" * 100_000
    tracemalloc.start()
    try:
        assert mime.html_part(message) is not None
        assert tracemalloc.get_traced_memory()[1] < 5 * len(message)
    finally:
        tracemalloc.stop()
