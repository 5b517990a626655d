"""What may be a sending domain, and how it is stored, shown and written below its zone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.domains import names
from mailsvc.domains.names import NotADomain


@pytest.mark.parametrize(
    ("text", "ascii", "shown"),
    [
        ("example.com", "example.com", "example.com"),
        (" Mail.EXAMPLE.com. ", "mail.example.com", "mail.example.com"),
        ("bücher.example", "xn--bcher-kva.example", "bücher.example"),
        ("BÜCHER.example", "xn--bcher-kva.example", "bücher.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", "bücher.example"),
        ("faß.example", "xn--fa-hia.example", "faß.example"),
        ("例え。テスト", "xn--r8jz45g.xn--zckzah", "例え.テスト"),
        ("shop.co.uk", "shop.co.uk", "shop.co.uk"),
        ("1.example.com", "1.example.com", "1.example.com"),
        ("mailsvc.example", "mailsvc.example", "mailsvc.example"),
    ],
)
def test_good_names(text: str, ascii: str, shown: str) -> None:
    name = names.parse(text)
    assert (name.ascii, name.shown, name.warning) == (ascii, shown, None)
    assert names.parse(name.shown).ascii == ascii


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("co.uk", "public suffix"),
        ("CO.UK.", "public suffix"),
        ("com", "two labels"),
        ("github.io", "public suffix"),
        ("192.0.2.1", "IP address"),
        ("[192.0.2.1]", "IP address"),
        ("[IPv6:2001:db8::1]", "IP address"),
        ("2001:db8::1", "IP address"),
        ("localhost", "two labels"),
        ("mail.localhost", ".localhost"),
        ("printer.local", ".local"),
        ("1.168.192.in-addr.arpa", ".arpa"),
        ("x.onion", ".onion"),
        ("example.123", ".123"),
        ("user@example.com", "not an email address"),
        ("https://example.com/", "not an email address"),
        ("example.com:25", "not an email address"),
        ("exam ple.com", "letters, digits and hyphens"),
        ("exam_ple.com", "letters, digits and hyphens"),
        ("-a.example.com", "letters, digits and hyphens"),
        ("a..example.com", "letters, digits and hyphens"),
        ("ab--c.example.com", "letters, digits and hyphens"),
        ("xn--a.example.com", "invalid characters"),
        ("exa\x00mple.com", "letters, digits and hyphens"),
        ("ex\u202eample.com", "invalid characters"),
        ("a" * 64 + ".com", "63 characters"),
        ("a." * 148 + "com", "253 characters"),
        (".".join(["a" * 60] * 4) + ".com", "189 characters"),
        ("out.example.net", "reserved for this service"),
        ("x.out.example.net", "reserved for this service"),
    ],
)
def test_bad_names(text: str, words: str) -> None:
    with pytest.raises(NotADomain) as caught:
        names.parse(text, {"out.example.net"})
    assert words in str(caught.value)


def test_a_name_with_our_name_as_suffix_is_not_reserved() -> None:
    assert names.parse("scout.example.net", {"out.example.net"}).ascii == "scout.example.net"
    assert names.parse("example.net", {"out.example.net"}).ascii == "example.net"


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("раураl.com", True),  # five Cyrillic letters and a Latin one
        ("аррӏе.com", True),  # all of it Cyrillic, and reads as Latin
        ("gοοgle.com", True),  # Greek
        ("bücher.com", False),
        ("пример.com", False),
        ("ελλάδα.com", False),
        ("東京tower.jp", False),
        ("한국.com", False),
    ],
)
def test_look_alikes_are_flagged(text: str, warns: bool) -> None:
    name = names.parse(text)
    assert (name.warning is not None) is warns
    if warns:
        assert "mistaken for another" in (name.warning or "")


@pytest.mark.parametrize(
    ("name", "domain", "relative"),
    [
        ("send.example.com", "example.com", "send"),
        ("send.mail.example.com", "mail.example.com", "send.mail"),
        ("s._domainkey.a.b.shop.co.uk", "a.b.shop.co.uk", "s._domainkey.a.b"),
        ("example.com", "example.com", "@"),
        ("send.mailsvc.example", "mailsvc.example", "send"),
    ],
)
def test_names_relative_to_the_zone(name: str, domain: str, relative: str) -> None:
    assert names.relative(name, domain) == relative


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("zoe@bücher.example", "zoe@xn--bcher-kva.example"),
        ("a@bücher.example, b@BÜCHER.example;c@x.example", "a@xn--bcher-kva.example, b@xn--bcher-kva.example;c@x.example"),
        ("@bücher.example", "@xn--bcher-kva.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("a..b@docomo.ne.jp", 'a..b"@docomo.ne.jp'),  # part of "a..b"@docomo.ne.jp
        ('"a..b"@docomo.ne.jp, a.@b.example', '"a..b"@docomo.ne.jp, a."@b.example'),
        ("Grüße", "Grüße"),  # a subject
        ("Émile Zola", "Émile Zola"),
        ("Preise für a.b", "Preise für a.b"),
    ],
)
def test_only_domains_are_searched_as_they_are_stored(text: str, stored: str) -> None:
    assert names.searched(text) == stored


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    try:
        name = names.parse(text)
    except NotADomain as wrong:
        assert str(wrong).endswith((".", "it."))
        return
    assert names.parse(name.ascii).ascii == name.ascii and name.ascii.isascii()


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Zoe@BÜCHER.example", "zoe@xn--bcher-kva.example"),
        ("Zoe@Example.net", "zoe@example.net"),
        ("Bücher", "bücher"),
        ("@", "@"),
        ("A..b@x.example", '"a..b"@x.example'),
    ],
)
def test_a_typed_address_is_as_it_is_stored(text: str, stored: str) -> None:
    assert names.typed_address(text) == stored
