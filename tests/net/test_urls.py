"""URLs from customers: each is normalized, and unusual spellings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.net.address_guard import networks
from mailsvc.net.urls import BadUrl, Rules, read

RULES = Rules()
LOCAL = Rules(frozenset(), True, networks(["127.0.0.0/8"]))


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM./a/b?c=d#e", "https://example.com/a/b?c=d"),
        ("https://example.com:443/", "https://example.com/"),
        ("https://example.com:8443?x", "https://example.com:8443/?x"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
        ("https://[2606:4700:0::1]/", "https://[2606:4700::1]/"),
        ("https://a_b.example.com/%20", "https://a_b.example.com/%20"),
    ],
)
def test_valid_urls_are_normalized(text: str, normalized: str) -> None:
    assert read(text, RULES).text == normalized
    assert read(normalized, RULES).text == normalized


@pytest.mark.parametrize(
    "text",
    """
    http://example.com/ ftp://example.com/ //example.com/ example.com https:/example.com javascript:alert(1) https:// https:///path
    https://user@example.com/ https://user:pass@example.com/ https://8.8.8.8@10.0.0.1/ https://example.com:22/ https://example.com:0/
    https://example.com:65536/ https://example.com:/ https://example.com:x/ https://2130706433/ https://0x7f.1/ https://127.1/
    https://0177.0.0.1/ https://127.0.0.1/ https://127.0.0.1./ https://8.8.8/ https://0x08080808/ https://1.1.1.1.1/ https://a.0x1/
    https://[::1]/ https://[::ffff:7f00:1]/ https://[::ffff:127.0.0.1]/ https://[fe80::1%25eth0]/ https://[fe80::1%eth0]/ https://[::]/
    https://[64:ff9b::7f00:1]/ https://localhost/ https://localhost./ https://foo.localhost/ https://LOCALHOST/ https://10.0.0.1/
    https://169.254.169.254/latest/meta-data https://192.168.0.1/ https://１２７.０.０.１/ https://①②⑦.⓪.⓪.①/ https://exa%6dple.com/
    https://example.com\\@10.0.0.1/ https://-a.example/ https://a..b/ https://[1.2.3.4]/ https://[example.com]/ https://a,b/
    """.split(),
)
def test_unusual_urls_are_refused(text: str) -> None:
    with pytest.raises(BadUrl):
        read(text, RULES)


@pytest.mark.parametrize("character", [*map(chr, range(33)), "\x7f", "\u2028", "é", "\\"])
def test_control_and_special_characters_are_refused(character: str) -> None:
    with pytest.raises(BadUrl):
        read(f"https://example.com/a{character}b", RULES)
    if character != "é":  # valid in a host name
        with pytest.raises(BadUrl):
            read(f"https://exa{character}mple.com/", RULES)


def test_rules_allow_http_ports_and_networks() -> None:
    assert read("http://127.0.0.1:1234/x", LOCAL).text == "http://127.0.0.1:1234/x"
    assert read("http://localhost:99/", LOCAL).text == "http://localhost:99/"
    with pytest.raises(BadUrl):
        read("http://10.0.0.1/", LOCAL)
    with pytest.raises(BadUrl, match="blocked by the operator"):
        read("https://8.8.8.8/", Rules(denied=networks(["8.8.8.0/24"]), allowed=networks(["8.8.8.8"])))
    with pytest.raises(BadUrl, match="at most"):
        read("https://example.com/" + "a" * 2048, RULES)


@given(st.text(max_size=40) | st.from_regex(r"https://[\x00-\x7f]{0,30}", fullmatch=True))
def test_a_normalized_url_is_parsed_to_itself(text: str) -> None:
    found: Any = None
    try:
        found = read(text, LOCAL)
    except BadUrl:
        return
    assert found.text.isascii()
    assert read(found.text, LOCAL) == found
