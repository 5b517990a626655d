"""Encoding and decoding text and addresses in SMTP parameters and reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.xtext import escaped, from_utf8, from_xtext, typed, unescaped, xtext

PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126))


@given(PRINTABLE)
def test_xtext_is_decoded_back(text: str) -> None:
    assert from_xtext(xtext(text)) == text
    assert not set(xtext(text)) & set(" =")


@given(st.text(min_size=1).filter(str.isprintable))
def test_an_escaped_address_is_decoded_back(address: str) -> None:
    written = escaped(address)
    assert written.isascii() and not set(written) & set(" +=")
    assert from_utf8(written) == unescaped(written) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("jörg@münchen.example", "jörg@münchen.example"),
        ("j\\x{F6}rg@x.example", "jörg@x.example"),
        ("a\\x{2B}b@x.example", "a+b@x.example"),
        ("\\x{1F600}@x.example", "\U0001f600@x.example"),
        ("a+2Bb@x.example", None),
        ("a\\b@x.example", None),
        ("a\\x{0A}b@x.example", None),
        ("a\\x{D800}b@x.example", None),
        ("a\\x{f6}b@x.example", None),
        ("a b@x.example", None),
        ("a\u2028b@x.example", None),
        ("", None),
    ],
)
def test_addresses_of_type_utf_8_are_decoded(text: str, address: str | None) -> None:
    assert from_utf8(text) == address


def test_the_type_decides_the_encoding_of_an_address() -> None:
    assert typed("rfc822", "a+b@x.example") == "rfc822;a+2Bb@x.example"
    assert typed("UTF-8", "ä+b@x.example") == "UTF-8;\\x{E4}\\x{2B}b@x.example"
