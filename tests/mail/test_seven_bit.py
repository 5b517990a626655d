"""Converting 8-bit messages to 7 bits keeps their contents."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.seven_bit import convert
from tests.growth import assert_linear, seconds


def leaves(message: Any) -> list[tuple[str, Any]]:
    if message.is_multipart():
        return [leaf for part in message.get_payload() for leaf in leaves(part)]
    payload = message.get_payload(decode=True)
    return [(message.get_content_type(), payload.replace(b"\r\n", b"\n") if message.get_content_maintype() == "text" else payload)]


def parsed(data: bytes) -> EmailMessage:
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


TEXT = "From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"


def test_text_is_encoded() -> None:
    message = (TEXT + "Grüße an alle, \r\n.\r\nFrom here\r\n" + "ü" * 400 + "\r\n").encode()
    result = convert(message)
    assert result.isascii() and b"Content-Transfer-Encoding: quoted-printable\r\n" in result
    assert leaves(parsed(result)) == leaves(parsed(message))
    assert max(map(len, result.split(b"\r\n"))) <= 76


def test_ascii_messages_are_unchanged() -> None:
    message = (TEXT + "plain\r\n").encode()
    assert convert(message) is message


def test_text_without_a_content_type_gets_one() -> None:
    result = parsed(convert("From: a@b.example\r\n\r\nGrüße\r\n".encode()))
    assert result["MIME-Version"] == "1.0" and result.get_content().strip() == "Grüße"
    assert parsed(convert(b"From: a@b.example\r\n\r\nGr\xfc\xdfe\r\n")).get_content().strip() == "Grüße"


def test_non_ascii_headers_are_encoded() -> None:
    head = 'From: Zoë <z@b.example>\r\nTo: "Ärger, Ö" <o@b.example>\r\nSubject: Grüße\r\n an dich\r\n'.encode()
    result = convert(head + b"\r\nx\r\n")
    assert result.isascii()
    message = parsed(result)
    assert message["Subject"] == "Grüße an dich" and message["From"].addresses[0].display_name == "Zoë"
    assert [address.addr_spec for address in message["To"].addresses][-1] == "o@b.example"


def test_names_with_commas_stay_one_address() -> None:
    head = 'From: "Anna, Müller" <a@b.example>\r\nTo: Zoë <z@b.example>,"Ärger, Ö (x)" <o@b.example>\r\n'
    message = parsed(convert((head + "\r\nx\r\n").encode()))
    assert [each.display_name for each in message["From"].addresses] == ["Anna, Müller"]
    assert [(each.display_name, each.addr_spec) for each in message["To"].addresses] == [
        ("Zoë", "z@b.example"),
        ("Ärger, Ö (x)", "o@b.example"),
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("jürgen@b.example", "jürgen@b.example: ;"),
        ("Jö <jö@b.example>, a@b.example", "Jö <jö@b.example>: ;, a@b.example"),
        ('a@b.example, "Ö, X" <ö@b.example>', "a@b.example, Ö, X <ö@b.example>: ;"),
        ("jö@b.example (Jö) (x), a@b.example", "jö@b.example (Jö) (x): ;, a@b.example"),
    ],
)
def test_a_non_ascii_address_becomes_a_group_without_addresses(value: str, shown: str) -> None:
    result = convert(f"Reply-To: {value}\r\n\r\nx\r\n".encode())
    field = parsed(result)["Reply-To"]
    assert b"?" not in re.sub(rb"=\?utf-8\?.\?[^?]*\?=", b"", result) and not field.defects
    assert shown == ", ".join(f"{one.display_name}: ;" if one.display_name else one.addresses[0].addr_spec for one in field.groups)


def test_many_long_addresses_are_encoded_too() -> None:
    boxes = [f"jö{'x' * 59}{n:02}@{'y.' * 120}example" for n in range(50)]
    result = convert((f"To: {boxes[0]}" + "".join(f",\r\n {each}" for each in boxes[1:]) + "\r\n\r\nx\r\n").encode())
    shown = [group.display_name.replace(" ", "") for group in parsed(result)["To"].groups]  # Python puts spaces between encoded words
    assert shown == boxes


def test_a_non_ascii_address_in_a_group_becomes_a_comment() -> None:
    result = convert("To: Team: jö@b.example, a@b.example;\r\n\r\nx\r\n".encode())
    [group] = parsed(result)["To"].groups
    assert group.display_name == "Team" and [one.addr_spec for one in group.addresses] == ["a@b.example"]
    assert b"Team: (=?utf-8?q?j=C3=B6=40b=2Eexample?=)," in result


def test_a_subject_keeps_its_quotes() -> None:
    assert parsed(convert('Subject: Ein "schöner, \\ Tag"\r\n\r\n'.encode()))["Subject"] == 'Ein "schöner, \\ Tag"'


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("written", ['"Größe, 1; 2.pdf"', "Größe.pdf", '"' + "Größe " * 30 + '.pdf"'])
def test_file_names_are_kept(written: str, encoding: str) -> None:
    part = f"Content-Type: application/pdf; x=y; name={written}\r\nContent-Disposition: attachment;\r\n filename={written}; size=5\r\n"
    head = 'Content-Type: multipart/mixed; boundary="b,c"\r\nMIME-Version: 1.0\r\n\r\n--b,c\r\n'
    result = convert((head + part + "\r\nabc\r\n--b,c--\r\n").encode(encoding))
    assert result.isascii() and max(map(len, result.split(b"\r\n"))) <= 78
    [file] = parsed(result).iter_attachments()
    assert file.get_filename() == file["Content-Type"].params["name"] == written.strip('"')
    assert file.get_content_type() == "application/pdf" and file.get_param("x") == "y"
    assert file.get_param("size", header="content-disposition") == "5"


@pytest.mark.parametrize(
    "text",
    [
        "Gr=C3=BC und Grüße =20\r\nzwei=\r\n Ü=\r\n",
        "https://x.example/?city=Überlingen",
        "=41" + "ü=3D" * 120,
        "ü" * 300 + "=" + "\r\n" + "a" * 200,
    ],
)
def test_bytes_that_quoted_printable_forgot_to_escape_are_kept(text: str) -> None:
    message = TEXT.replace("8bit", "quoted-printable").encode() + text.encode()
    result = convert(message)
    assert result.isascii()
    assert leaves(parsed(result)) == leaves(parsed(message))
    assert all(len(line) <= 76 for line in result.split(b"\r\n") if line != b"a" * 200)


def test_multipart_structure_is_kept() -> None:
    part = "Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n<p>ü</p>"
    message = (
        'From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary="x y"\r\n\r\n'
        f"preamble\r\n--x y\r\n{part}\r\n--x y \r\nContent-Type: image/png\r\n\r\n\x00ü\r\n--x y\r\nContent-Type: message/rfc822\r\n\r\n"
        f"From: c@d.example\r\nMIME-Version: 1.0\r\n{part}\r\n--x y\r\n\r\nascii\r\n--x y--\r\nepilogue ü\r\n"
    ).encode()
    result = convert(message)
    assert result.isascii()
    assert leaves(parsed(result)) == leaves(parsed(message))
    assert result.count(b"\r\n--x y") == 5 and b"\r\n\r\nascii\r\n" in result


def test_the_parts_of_a_digest_stay_messages() -> None:
    part = TEXT + "ü\r\n"
    head = "From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/digest; boundary=q\r\n\r\n"
    message = f"{head}--q\r\n\r\n{part}\r\n--q\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nä\r\n--q--\r\n".encode()
    result = convert(message)
    assert result.isascii()
    assert leaves(parsed(result)) == leaves(parsed(message))
    assert b"--q\r\nContent-Transfer-Encoding: 7bit\r\n\r\nFrom: a@b.example\r\n" in result


PIECE = st.one_of(st.binary(max_size=60), st.text("aü.\t -=_é\u20ac", max_size=60).map(str.encode))


@given(
    st.lists(
        st.tuples(st.sampled_from(["text/plain; charset=utf-8", "text/html; charset=iso-8859-1", "application/pdf"]), PIECE), max_size=4
    )
)
@settings(max_examples=200)
def test_any_parts_decode_to_the_same(parts: list[tuple[str, bytes]]) -> None:
    body = b""
    for kind, data in parts:
        data = data.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
        body += b"\r\n--q\r\nContent-Type: " + kind.encode() + b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + data
    message = b"From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=q\r\n\r\n" + body + b"\r\n--q--\r\n"
    result = convert(message)
    assert result.isascii()
    if parts:
        assert leaves(parsed(result)) == leaves(parsed(message))


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_become_ascii(data: bytes) -> None:
    assert convert(data).isascii()
    assert convert(b"Content-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n" + data).isascii()


def test_only_non_ascii_quoted_strings_lose_their_quotes() -> None:
    result = convert('From: "Bob" <b@c.example>\r\nX-Note: "plain" é "\\"Gr\\üße\\"" "open é\r\n\r\nx\r\n'.encode())
    assert b'From: "Bob" <b@c.example>' in result
    assert parsed(result)["X-Note"] == '"plain" é "Grüße" "open é'


def test_a_repeated_boundary_belongs_to_the_outer_multipart() -> None:
    inner = "Content-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n\r\nGrüße\r\n--q--\r\n"
    result = convert(f"Content-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n{inner}\r\n--q--\r\n".encode())
    assert result.isascii() and b"\r\n\r\nGr=C3=BC=C3=9Fe\r\n--q--" in result


NEST = 'Content-Type: multipart/mixed; boundary="{}"\r\n\r\n--{}\r\n'
HOSTILE = {
    "quoted strings": lambda size: b"Subject: x\r\n" + (b"X: " + b'"\\"' * 1500 + b"\xc3\xa9\r\n") * (size // 4500) + b"\r\n\xc3\xa9",
    "one open quoted string": lambda size: b"X: \xc3\xa9" + b'"\\' * (size // 2) + b"\r\n\r\n",
    "delimiters": lambda size: b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + b"\r\n--q" * (size // 5) + b"\xe9",
    "almost delimiters": lambda size: b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + b"\r\n--" * (size // 4) + b"\xe9",
    "parts without an end of their header": lambda size: (
        b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + b"\r\n--q\r\nX: y" * (size // 11) + b"\xe9"
    ),
    "header lines": lambda size: b"X: \xe9\r\n" * (size // 6) + b"\r\n\xe9",
    "deep parts": lambda size: (
        "".join(NEST.format("a" * n, "a" * n) for n in range(1, 60)).encode() + b"\r\n--aaaa" * (size // 8) + b"\xe9"
    ),
    "one long line": lambda size: b"\r\n" + b"\xe9 " * (size // 2),
    "boundaries": lambda size: b"Content-Type: multipart/mixed" + b"; boundary=" * (size // 11) + b"\r\n\r\n\xe9",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_conversion_takes_linear_time(name: str) -> None:
    assert_linear(HOSTILE[name], convert, 30_000)


def test_a_small_message_is_converted_quickly() -> None:
    mail = ('Subject: "' + "é" * 4900 + "\r\n").encode() * 24 + b"\r\nx\r\n"
    assert convert(mail).isascii()
    assert seconds(lambda: convert(mail), times=1) < 1.0
