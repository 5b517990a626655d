"""Parsers of untrusted input take linear time: the worst inputs for each, at three sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from mailsvc.dashboard.emails import preview
from mailsvc.http import request as http_request
from mailsvc.mail import address, encoded_word, header, html, html_to_text, mime, parameters, structure, submission
from mailsvc.mail.mime import Parsed
from mailsvc.mail.reports import dsn_reader, feedback, report, text_bounce
from mailsvc.monitoring import logs
from tests.growth import assert_linear, seconds

Make = Callable[[int], Any]


def of(unit: str, begin: str = "", end: str = "") -> Make:
    """That text, again and again."""
    return lambda size: begin + unit * (size // len(unit)) + end


def encoded(make: Make) -> Make:
    return lambda size: make(size).encode()


def mail(unit: str, begin: str, end: str = "") -> Make:
    return encoded(of(unit, begin, end))


MULTIPART = "Content-Type: multipart/mixed; boundary=q\r\n\r\n"
REPORT = (
    "Content-Type: multipart/report; report-type=delivery-status; boundary=q\r\n\r\n--q\r\nContent-Type: message/delivery-status\r\n\r\n"
)

PAGES = {
    "hidden elements": of("<p hidden>a"),
    "hidden elements that nobody ends": of("<b hidden><i>a</b>"),
    "open tags": of("<a "),
    "an open tag": of(" a=", "<a "),
    "open comments": of("<!--"),
    "open declarations": of("<!a"),
    "open instructions": of("<?"),
    "open sections": of("<![CDATA["),
    "heads": of("<head "),
    "scripts": of("<script>"),
    "end tags in a script": of("</scrip", "<script>"),
    "titles": of("<title>"),
    "ampersands": of("&"),
    "quotation marks": of('<a href="'),
    "nested blocks": of("<div>"),
    "ends": of("</b>", "<p>" * 200),
    "styles": of(";", '<p style="', '">'),
    "spaces": of(" ", "<p>", "a"),
    "links": of("<a href=https://a.example>a</a>"),
    "unseen characters": of("\u200b"),
}
PARTS = {
    "delimiters": mail("\r\n--q", MULTIPART),
    "fields of parts": mail("a:\r\n", MULTIPART + "--q\r\n"),
    "parts without an end of their header": mail("\r\n--q\r\nX: y", MULTIPART),
    "types": mail("Content-Type: a\r\n", MULTIPART + "--q\r\n"),
    "space in a type": mail(" ", MULTIPART + "--q\r\nContent-Type", "\r\n\r\n"),
    "sections": encoded(lambda size: "Content-Type: a/b" + "".join(f"; x*{n}=aaaa" for n in range(size // 12)) + "\r\n\r\n"),
    "line ends": mail("\r\n", MULTIPART + "--q\r\n\r\n"),
    "groups of a report": mail("\r\n\r\na: b", REPORT),
    "space in a report": mail(" ", REPORT + "a: b\r\n"),
    "addresses in a text": mail(
        "a@b.example ", "From: mailer-daemon@a.example\r\n\r\nThis message was created automatically by mail delivery software\r\n"
    ),
}
TEXTS = {
    "separators": of(",a", "", "@"),
    "quotation marks": of('"\\"', '"'),
    "brackets": of("<"),
    "parentheses": of("(\\("),
    "encoded words": of("=?utf-8?q?a?= "),
    "open words": of("=?a?q?"),
    "schemes": of("a."),
    "links": of("a://b:c"),
    "keys": of("-----BEGIN RSA "),
    "passwords": of("bearer "),
    "spaces": of(" ", "x", "x"),
    "line ends": of("\r\n "),
    "parameters": of("; a=b", "a/b"),
    "open parameters": of(';a="\\"', "a/b"),
    "a long name": of("a"),
    "slashes": of("/a"),
    "at signs": of("@a"),
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("read", [html.read, html_to_text.text_of], ids=["markup", "plain"])
def test_html_is_parsed_in_linear_time(name: str, read: Callable[[str], Any]) -> None:
    assert_linear(PAGES[name], read, 20_000)


@pytest.mark.parametrize("name", PAGES)
def test_previews_take_linear_time(name: str) -> None:
    assert_linear(lambda size: Parsed((), PAGES[name](size), None, ()), preview.embedded, 20_000)


def _structure(message: bytes) -> None:
    head, start = header.split_message(message)
    structure.fault(head, message, start)


def _mime(message: bytes) -> None:
    with contextlib.suppress(mime.MimeError):
        mime.parse(message)


def _report(message: bytes) -> None:
    found = report.read(message)
    dsn_reader.read(found), text_bounce.read(found), feedback.read(found)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("read", [_structure, _mime, _report])
def test_parts_are_parsed_in_linear_time(name: str, read: Callable[[bytes], Any]) -> None:
    assert_linear(PARTS[name], read, 16_000)


@pytest.mark.parametrize("read", [_structure, _mime, _report])
def test_delimiters_before_the_end_of_a_header_take_linear_time(read: Callable[[bytes], Any]) -> None:
    """At most 64 kB of a header and 1,000 parts are read, so larger mails would take less time."""

    def make(size: int) -> bytes:
        return (MULTIPART + "--q\r\n" * (size // 100) + "content-type:\r\n" * (size // 17) + "x: multipart\r\n\r\nx").encode()

    assert_linear(make, read, 4_000)


def _mailbox(text: str) -> None:
    with contextlib.suppress(address.AddressError):
        address.parse_mailbox(text[: address._TEXT_LIMIT])


def _path(text: str) -> None:
    with contextlib.suppress(address.AddressError):
        address.parse_path(text.encode(), True)


READERS: dict[str, Callable[[str], Any]] = {
    "parameters": parameters.decode,
    "encoded words": encoded_word.decode,
    "a list of addresses": lambda text: submission._mailboxes([text.encode()]),
    "fields": lambda text: header.parse_fields(text.encode(), strict=False),
    "a mailbox": _mailbox,
    "a path": _path,
    "a log line": logs.without_secrets,
    "a path of the API": lambda text: http_request._public(text.encode()),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_text_is_parsed_in_linear_time(name: str, reader: str) -> None:
    assert_linear(TEXTS[name], READERS[reader], 4_000)


@pytest.mark.parametrize("name", TEXTS)
def test_the_longest_address_is_parsed_quickly(name: str) -> None:
    text = TEXTS[name](address._TEXT_LIMIT)
    assert seconds(lambda: _mailbox(text)) < 0.01
    assert seconds(lambda: _mailbox(f"{text} <a@b.example>")) < 0.01
