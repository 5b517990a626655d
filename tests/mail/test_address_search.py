"""An address is found in every encoding that mail and the API use, and not within another address."""

from __future__ import annotations

import base64
import html
import json
import quopri
from email.message import EmailMessage
from time import process_time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.address_search import Address, Search
from mailsvc.mail.xtext import xtext

ADDRESS = "Ann.O'Neil+news@shop.example"
SEARCH = Search(Address(ADDRESS))


@pytest.mark.parametrize(
    "text",
    [
        ADDRESS,
        ADDRESS.upper(),
        f"Ann <{ADDRESS}>, and others",
        f"Write to {ADDRESS}.",
        f"/contacts/{quote(ADDRESS)}",
        f"?to=%3C{quote(ADDRESS)}%3E",
        f"RCPT TO:<x@example.net> ORCPT=rfc822;{xtext(ADDRESS)}",
        '{"text": "line\\n' + ADDRESS + '\\r\\n"}',
        ADDRESS.replace("@", "\\u0040"),
        ADDRESS.replace("@", "&#64;").replace("+", "&#x2b;"),
        ADDRESS.replace("@", "=40"),
        f"{ADDRESS}.txt, {ADDRESS}.pdf",
    ],
)
def test_forms(text: str) -> None:
    assert SEARCH.in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        f"x{ADDRESS}",
        f"x.{ADDRESS}",
        f"{ADDRESS}.au",
        f"{ADDRESS}.txt.au",
        f"{ADDRESS}.pdfs",
        f"{ADDRESS}-x",
        "ann@shop.example",
        "",
        "x-" + ADDRESS,
    ],
)
def test_other_addresses(text: str) -> None:
    assert not SEARCH.in_text(text)


def test_a_domain_is_found_in_both_forms() -> None:
    for written in ("jürg@bücher.example", "jürg@xn--bcher-kva.example"):
        search = Search(Address(written))
        assert search.in_text("<jürg@bücher.example>") and search.in_text("JÜRG@XN--BCHER-KVA.example")
        assert search.in_text(quote("jürg@bücher.example")) and search.in_bytes("jürg@bücher.example".encode())


@pytest.mark.parametrize("address", ['"a b"@x.example', '"a..b"@x.example'])
def test_quotes_are_found_in_json_and_html(address: str) -> None:
    search = Search(Address(address))
    for text in (address, json.dumps([address]), html.escape(address), f"&lt;{address.replace(chr(34), '&#34;')}&gt;", quote(address)):
        assert search.in_text(text)
        assert "a" not in search.blank(text.encode()).decode().replace("&amp;", "")
    assert search.in_text(address.replace('"', "")) == (".." in address)  # a header that was submitted can have it without quotes
    assert json.loads(search.blank(b'["a..b@x.example"]'))  # the quotes of JSON stay


def messages() -> list[bytes]:
    found = [f"To: <{ADDRESS}>\r\n\r\nHello\r\n".encode()]
    for encoding in ("base64", "quoted-printable", "7bit"):
        message = EmailMessage()
        message["To"] = "b@example.net"
        message.set_content(f"{'x ' * 37}{ADDRESS} is somebody.\n", cte=encoding)
        found.append(message.as_bytes().replace(b"\n", b"\r\n"))
    html = EmailMessage()
    html.set_content("Hello")
    html.add_alternative(f"<p>{ADDRESS}</p>", subtype="html", cte="base64")
    found.append(html.as_bytes().replace(b"\n", b"\r\n"))
    for inner in list(found):
        outer = EmailMessage()
        outer.set_content("Attached.")
        outer.add_attachment(inner, maintype="application", subtype="octet-stream", filename="a.eml")
        found.append(outer.as_bytes().replace(b"\n", b"\r\n").replace(b"application/octet-stream", b"message/rfc822"))
    word = base64.b64encode(f"About {ADDRESS}".encode()).decode()
    found.append(f"Subject: =?utf-8?b?{word}?=\r\n\r\n".encode())
    found.append(b"Subject: =?utf-8?q?" + quopri.encodestring(ADDRESS.encode(), header=True).replace(b"=\n", b"") + b"?=\r\n\r\n")
    found.append(b"Content-Type: text/plain; charset=utf-16\r\nContent-Transfer-Encoding: base64\r\n\r\n")
    found[-1] += base64.encodebytes(f"About {ADDRESS}".encode("utf-16")).replace(b"\n", b"\r\n")
    found.append(f"Content-Disposition: attachment; filename*=utf-8''{quote(ADDRESS)}\r\n\r\nx".encode())
    return found


@pytest.mark.parametrize("message", messages())
def test_messages(message: bytes) -> None:
    assert SEARCH.in_message(message)
    assert not Search(Address("somebody@else.example")).in_message(message)


@given(st.integers(0, 140_000), st.integers(0, 3000))
def test_it_is_found_wherever_it_is(before: int, after: int) -> None:
    data = b" " * before + ADDRESS.encode() + b" " * after
    assert SEARCH.in_bytes(data)
    assert SEARCH.blank(data) == b" " * before + b"x" * len(ADDRESS) + b" " * after


@pytest.mark.parametrize("text", ["ann.o'neil+", "%40", "&#0000000", "ann.o'neil+news@shop.exampl", "\\u0040", "=40", "a@", "\\n"])
def test_searching_takes_linear_time(text: str) -> None:
    """Also if the text has the part that is looked for first."""

    def seconds(length: int) -> float:
        whole = (text * length)[:length] + SEARCH.address.run + " "
        began = process_time()
        assert not SEARCH.in_text(whole)
        return process_time() - began

    seconds(1000)
    assert min(seconds(400_000) for _ in range(3)) < 20 * max(min(seconds(100_000) for _ in range(3)), 0.002)
