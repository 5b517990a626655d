"""An 8-bit message in 7 bits says the same."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.sevenbit import convert


def leaves(message: Any) -> list[tuple[str, Any]]:
    if message.is_multipart():
        return [leaf for part in message.get_payload() for leaf in leaves(part)]
    payload = message.get_payload(decode=True)
    return [(message.get_content_type(), payload.replace(b"\r\n", b"\n") if message.get_content_maintype() == "text" else payload)]


def parsed(octets: bytes) -> EmailMessage:
    message = message_from_bytes(octets, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


TEXT = "From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"


def test_a_text() -> None:
    message = (TEXT + "Grüße an alle, \r\n.\r\nFrom here\r\n" + "ü" * 400 + "\r\n").encode()
    made = convert(message)
    assert made.isascii() and b"Content-Transfer-Encoding: quoted-printable\r\n" in made
    assert leaves(parsed(made)) == leaves(parsed(message))
    assert max(map(len, made.split(b"\r\n"))) <= 76


def test_ascii_stays_as_it_is() -> None:
    message = (TEXT + "plain\r\n").encode()
    assert convert(message) is message


def test_a_text_that_says_nothing_of_itself() -> None:
    made = parsed(convert("From: a@b.example\r\n\r\nGrüße\r\n".encode()))
    assert made["MIME-Version"] == "1.0" and made.get_content().strip() == "Grüße"
    assert parsed(convert(b"From: a@b.example\r\n\r\nGr\xfc\xdfe\r\n")).get_content().strip() == "Grüße"


def test_headers() -> None:
    head = 'From: Zoë <z@b.example>\r\nTo: "Ärger, Ö" <o@b.example>\r\nSubject: Grüße\r\n an dich\r\n'.encode()
    made = convert(head + b"\r\nx\r\n")
    assert made.isascii()
    message = parsed(made)
    assert message["Subject"] == "Grüße an dich" and message["From"].addresses[0].display_name == "Zoë"
    assert [address.addr_spec for address in message["To"].addresses][-1] == "o@b.example"


def test_parts_keep_their_frame() -> None:
    part = "Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n<p>ü</p>"
    message = (
        'From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary="x y"\r\n\r\n'
        f"preamble\r\n--x y\r\n{part}\r\n--x y \r\nContent-Type: image/png\r\n\r\n\x00ü\r\n--x y\r\nContent-Type: message/rfc822\r\n\r\n"
        f"From: c@d.example\r\nMIME-Version: 1.0\r\n{part}\r\n--x y\r\n\r\nascii\r\n--x y--\r\nepilogue ü\r\n"
    ).encode()
    made = convert(message)
    assert made.isascii()
    assert leaves(parsed(made)) == leaves(parsed(message))
    assert made.count(b"\r\n--x y") == 5 and b"\r\n\r\nascii\r\n" in made


PIECE = st.one_of(st.binary(max_size=60), st.text("aü.\t -=_é\u20ac", max_size=60).map(str.encode))


@given(
    st.lists(
        st.tuples(st.sampled_from(["text/plain; charset=utf-8", "text/html; charset=iso-8859-1", "application/pdf"]), PIECE), max_size=4
    )
)
@settings(max_examples=200)
def test_any_parts_say_the_same(parts: list[tuple[str, bytes]]) -> None:
    body = b""
    for kind, octets in parts:
        octets = octets.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
        body += b"\r\n--q\r\nContent-Type: " + kind.encode() + b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + octets
    message = b"From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=q\r\n\r\n" + body + b"\r\n--q--\r\n"
    made = convert(message)
    assert made.isascii()
    if parts:
        assert leaves(parsed(made)) == leaves(parsed(message))


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_octets_become_ascii(octets: bytes) -> None:
    assert convert(octets).isascii()
    assert convert(b"Content-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n" + octets).isascii()
