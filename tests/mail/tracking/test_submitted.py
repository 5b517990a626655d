"""Submitted messages: only their HTML part changes."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail import mime
from mailsvc.mail.tracking import submitted

HTML = '<p>Grüße, <a href="https://x.example/">x</a></p>\r\n'


def tracked(message: bytes, complete: bool = True) -> bytes | None:
    part = submitted.html_of(message, complete)
    return None if part is None else submitted.replaced(message, part, lambda html: html.replace("https://x.example/", "NEW"))


def simple(encoding: str, body: bytes, charset: str = "utf-8") -> bytes:
    head = f"Subject: x\r\nContent-Type: text/html; charset={charset}\r\ncontent-transfer-encoding:\r\n {encoding}\r\nX-After: y\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("cte", ["7bit", "quoted-printable", "base64", "8bit"])
def test_the_html_is_decoded_and_encoded_again(cte: str) -> None:
    mail = EmailMessage(policy.SMTP)
    mail["Subject"], mail["From"] = "x", "a@example.com"
    mail.set_content("text https://x.example/\n")
    html = HTML.replace("ü", "u").replace("ß", "s") if cte == "7bit" else HTML
    mail.add_alternative(html.replace("\r\n", "\n"), "html", cte=cte)
    mail.add_attachment(b"<a href=https://x.example/>", "text", "html", filename="a.html")
    mail.add_attachment(bytes(range(256)) * 9, "image", "png", filename="a.png")
    message = mail.as_bytes()
    written = tracked(message)
    assert written is not None
    before, after = mime.parse(message), mime.parse(written)
    assert after.html == (before.html or "").replace("https://x.example/", "NEW") and after.defects == ()
    assert (after.text, after.files, after.shape) == (before.text, before.files, before.shape)
    part = mime.html_part(message)
    assert part is not None and written.startswith(message[: part.start]) and written.endswith(message[part.end :])
    assert max(map(len, written.split(b"\r\n"))) <= 998


@pytest.mark.parametrize(
    ("message", "html"),
    [
        (simple("8bit", HTML.encode()), HTML),
        (simple("8BIT", HTML.encode("latin-1"), "iso-8859-1"), HTML),
        (simple("8bit", b"\xff" + HTML.encode(), "us-ascii"), "\ufffd" + HTML),
        (simple("8bit", b"\xff" + HTML.encode(), "utf-8"), "\ufffd" + HTML),
        (simple("8bit", b"\xff" + HTML.encode(), ""), "\ufffd" + HTML),
        (simple("8bit", ("朱镕基 " + HTML).encode("gb18030"), "gb2312"), "朱镕基 " + HTML),
        (simple("8bit", "①髙橋 <a href='https://x.example/'>".encode("cp932"), "shift_jis"), "①髙橋 <a href='https://x.example/'>"),
        (simple("8bit", HTML.encode("utf-16"), "utf-16"), None),  # bare line ends could not be told from characters
        (simple("8bit", b"\x81 " + HTML.encode("shift_jis", "ignore"), "shift_jis"), None),
        (simple("8bit", b"\x1b$B\x1b(B" + b'<a href="https://x.example/">', "iso-2022-jp"), None),  # it would not come out as it went in
        (simple("8bit", HTML.encode(), "unknown"), None),
        (simple("gzip", HTML.encode()), None),
        (simple("base64", b"!!!"), None),
        (simple("7bit", b""), None),
        (simple("7bit", b"<p>no link</p>"), None),
        (b"DKIM-Signature: v=1\r\n" + simple("8bit", HTML.encode()), None),
        (b"Content-Type: text/plain\r\n\r\n" + HTML.encode(), None),
        (b"Subject: x\r\n\r\n" + HTML.encode(), None),
        (b"", None),
    ],
)
def test_messages_of_one_part(message: bytes, html: str | None) -> None:
    written = tracked(message)
    if html is None:
        assert written is None or written == message or b"utf-16" in message
        return
    assert written is not None
    assert (mime.parse(written).html or "").strip() == html.replace("https://x.example/", "NEW").strip()
    assert written.count(b"ransfer-") == 1 and b"X-After: y\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" in written


@pytest.mark.parametrize(
    ("content", "charset"),
    [
        (HTML.replace("\r\n", "\r\r\n") * 3, "utf-8"),  # of "=0D" at the end of each line
        (HTML.replace("\r\n", "\r") * 3, "utf-8"),
        ("\r" + HTML + "\r", "utf-8"),
        (HTML * 3, "utf-16-le"),
        (HTML.replace("\r\n", "\n") * 3, "utf-16-be"),
    ],
)
def test_encoded_line_ends_stay_encoded(content: str, charset: str) -> None:
    """SMTP allows CR and LF only together, so a message that has one alone is never sent."""
    encoded = b"=\r\n".join(b"=%02X" % byte for byte in content.encode(charset))
    written = tracked(simple("quoted-printable", encoded, charset))
    assert written is not None and b"\r" not in written.replace(b"\r\n", b"")
    assert message_from_bytes(written).get_payload(decode=True) == content.replace("https://x.example/", "NEW").encode(charset)


@pytest.mark.parametrize("kind", ["multipart/signed; protocol=x", "multipart/encrypted"])
def test_what_is_signed_or_encrypted_does_not_change(kind: str) -> None:
    inner = b"--b\r\n" + simple("8bit", HTML.encode()) + b"\r\n--b\r\nContent-Type: x/y\r\n\r\nsignature\r\n--b--\r\n"
    message = f'Content-Type: {kind}; boundary="b"\r\n\r\n'.encode() + inner
    assert tracked(message) is None
    assert tracked(message.replace(kind.encode(), b"multipart/mixed")) is not None
    assert tracked(b'Content-Type: multipart/mixed; boundary="a"\r\n\r\n--a\r\n' + message + b"\r\n--a--\r\n") is None


def test_html_that_may_go_on_is_not_changed() -> None:
    message = (
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n' + simple("8bit", HTML.encode()) + b"\r\n--b\r\n\r\nmore\r\n--b--\r\n"
    )
    end = message.index(b"\r\n--b\r\n\r\nmore")
    assert tracked(message[:end], complete=False) is None
    written = tracked(message[: end + 10], complete=False)
    assert written is not None and b"NEW" in written


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    for message in data, b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/html\r\n" + data:
        tracked(message)
