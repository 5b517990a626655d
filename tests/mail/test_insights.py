"""Each check of an email's message, seen to find what it looks for and to be silent otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail import insights, markup, mime

GOOD = '<html lang="en"><p>Your order is on its way. <a href="https://shop.example.com/o/1">See your order</a></p></html>'


def mail(
    html: str = GOOD,
    text: str = "Your order is on its way.",
    fields: str = "",
    sender: str = "Shop <hello@example.com>",
    subject: str = "Your order",
):
    boundary = "----b"
    head = f"From: {sender}\r\nTo: ann@example.org\r\nSubject: {subject}\r\n{fields}MIME-Version: 1.0\r\n"
    head += f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'
    parts = [
        f"--{boundary}\r\nContent-Type: text/{kind}; charset=utf-8\r\n\r\n{body}\r\n"
        for kind, body in (("plain", text), ("html", html))
        if body
    ]
    return (head + "".join(parts) + f"--{boundary}--\r\n").encode()


def found(message: bytes, bulk: bool = False, size: int | None = None) -> dict[str, str]:
    return {one.title: one.level for one in insights.of_message(mime.parse(message), size or len(message), bulk)}


def test_a_good_mail_needs_nothing():
    levels = found(mail())
    assert set(levels.values()) == {"great"}, levels
    assert "Links lead to the sender's domain" in levels


@pytest.mark.parametrize(
    ("changes", "title", "level"),
    [
        ({"text": ""}, "Include a plain text part", "attention"),
        ({"html": GOOD + "x" * 105_000}, "The html is too large", "attention"),
        ({"html": GOOD + "x" * 95_000}, "The html is nearly too large", "better"),
        ({"sender": "no-reply@example.com"}, "Don't use a “no-reply” address", "attention"),
        ({"sender": "ann@gmail.com"}, "Send from a domain of your own", "attention"),
        ({"subject": ""}, "It has no subject", "attention"),
        ({"subject": "BUY THIS NOW"}, "The subject could be better", "better"),
        ({"subject": "Re: your order"}, "The subject could be better", "better"),
        ({"html": GOOD + '<a href="https://other.test/">x</a>'}, "Link to your own domain", "attention"),
        (
            {"html": GOOD + '<a href="https://shop.example.com">www.bank.test</a>'},
            "A link says one address and leads to another",
            "attention",
        ),
        ({"html": GOOD + '<a href="https://bit.ly/x">x</a>'}, "Don't shorten links", "attention"),
        ({"html": GOOD + '<a href="http://192.0.2.1/">x</a>'}, "Link to names, not to IP addresses", "attention"),
        ({"html": GOOD + '<img src="http://example.com/a.png" alt="">'}, "Use https", "better"),
        ({"html": GOOD + '<a href="https://youtu.be/x">x</a>'}, "Use full YouTube links", "better"),
        ({"html": GOOD + '<a href="https://example.com/">x</a>' * 51}, "There are many links", "better"),
        ({"html": GOOD + '<img src="https://example.com/a.png">'}, "Describe the images", "better"),
        ({"html": GOOD + '<img alt="" src="data:image/png;base64,AA">'}, "Images inside the html are lost", "better"),
        ({"html": GOOD + '<img alt="" src="https://example.com/a.svg">'}, "Avoid SVG images", "better"),
        ({"html": GOOD + "<script>1</script>"}, "Remove what mail cannot do", "attention"),
        ({"html": GOOD + "<form></form>"}, "Some programs do not show all of it", "better"),
        ({"html": "<p>Hello</p>"}, "Say the language", "better"),
    ],
)
def test_each_check_finds_what_it_looks_for(changes, title, level):
    assert found(mail(**changes)).get(title) == level
    assert title not in found(mail())


def test_mail_to_many_must_offer_to_unsubscribe():
    assert found(mail(), bulk=True)["Let people unsubscribe with one click"] == "attention"
    fields = "List-Unsubscribe: <https://example.com/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    assert found(mail(fields=fields), bulk=True)["People can unsubscribe with one click"] == "great"
    assert "Let people unsubscribe with one click" not in found(mail())


def test_a_message_may_be_too_large():
    assert found(mail(), size=26 << 20)["The message is too large"] == "attention"
    assert found(mail(), size=11 << 20)["The message is large"] == "better"


def test_a_dangerous_attachment_is_named():
    head = b"From: a@example.com\r\nSubject: x\r\nContent-Disposition: attachment\r\n"
    attached = head + b'Content-Type: application/octet-stream; name="a.exe"\r\n\r\nx'
    assert found(attached)["Receivers refuse this attachment"] == "attention"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_html_can_be_read(html):
    markup.read(html)
    markup.read(f"<a href='{html}'><img src=\"{html}\"></a>")
    insights.of_message(mime.Parsed((), html, None, ()), 1, True)
