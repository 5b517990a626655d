"""The client address of a request."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mailsvc.http import gate
from mailsvc.http.gate import address

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", [b"203.0.113.9"], "192.0.2.1"),
        ("10.0.0.1", [b"203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [b"198.51.100.7, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [b"198.51.100.7", b"203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", [b"10.0.0.3"], "10.0.0.3"),
        ("10.0.0.1", [b"nonsense"], "10.0.0.1"),
        ("10.0.0.1", [b"\xff"], "10.0.0.1"),
        ("", [b"203.0.113.9"], "203.0.113.9"),
        ("", [], "local"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("::ffff:192.0.2.1", [], "192.0.2.1"),
        ("::ffff:10.0.0.1", [b"203.0.113.9"], "203.0.113.9"),
        ("fd00::1", [b"2001:db8::5"], "2001:db8::/64"),
    ],
)
def test_address_is_the_nearest_untrusted_hop(peer: str, forwarded: list[bytes], expected: str) -> None:
    assert address(peer, forwarded, TRUSTED) == expected


def test_forwarded_headers_are_ignored_without_trusted_proxies() -> None:
    assert address("10.0.0.1", [b"203.0.113.9"], ()) == "10.0.0.1"
    assert address("", [b"203.0.113.9"], ()) == "local"


def test_what_is_too_long_for_an_address_is_not_remembered() -> None:
    address("10.0.0.1", [], TRUSTED)
    before = gate._address.cache_info().currsize
    assert address("10.0.0.1", [b"x" * (gate.ADDRESS_MAX + 1)], TRUSTED) == "10.0.0.1"
    assert gate._address.cache_info().currsize == before
