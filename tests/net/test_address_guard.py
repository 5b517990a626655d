"""The guard refuses all addresses except global ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.net.address_guard import networks, refusal

_REFUSED = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1
192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
:: ::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe ::127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1::
3fff::1 5f00::1 fc00::1 fd12:3456::1 fe80::1 fe80::1%eth0 2606:4700::1%eth0 fec0::1 ff02::1
192.31.196.1 192.52.193.1 192.175.48.1 2620:4f:8000::1 3fff:fff::1 2001:1ff:ffff::1
::ffff:0:7f00:1 ::ffff:0:8.8.8.8 ::8.8.8.8 64:ff9b::8.8.8.8 64:ff9b:2::1 100:0:0:1::1 1000::1 4000::1 6000::1 8000::1 a000::1 c000::1
e000::1 f000::1 1fff:ffff::1 200::1 400::1
"""
_ALLOWED = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 223.255.255.255 2606:4700::1 2a00:1450::1 ::ffff:8.8.8.8"
_ALLOWED += " 192.0.1.1 192.31.195.255 192.31.197.0 2001:200::1 2001:db7::1 2001:db9::1 2003::1 2620:4f:7fff::1 3ffe::1 3fff:1000::1"


@pytest.mark.parametrize("address", _REFUSED.split())
def test_special_addresses_are_refused(address: str) -> None:
    assert refusal(address)


@pytest.mark.parametrize("address", _ALLOWED.split())
def test_global_addresses_are_allowed(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("text", ["localhost", "0x7f.1", "2130706433", "127.1", "010.0.0.1", "", "[::1]", "1.1.1.1:25"])
def test_other_spellings_are_not_ip_addresses(text: str) -> None:
    assert "not an IP address" in (refusal(text) or "")


def test_allowed_networks_are_exceptions() -> None:
    allowed = networks(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])
    assert refusal("127.0.0.1", allowed) is None
    assert refusal("10.9.9.9", allowed) is None
    assert refusal("fd00::25", allowed) is None
    assert refusal("::ffff:127.0.0.1", allowed) is None
    assert refusal("127.0.0.2", allowed)
    with pytest.raises(ValueError, match="mail"):
        networks(["mail.example.com"])


def test_mapped_networks_are_ipv4_networks() -> None:
    texts = ["::ffff:10.0.0.0/104", "::ffff:192.0.2.1", "::ffff:0:0/96", "::/0", "::/95", "2001:db8::/32"]
    assert list(map(str, networks(texts))) == ["10.0.0.0/8", "192.0.2.1/32", "0.0.0.0/0", "::/0", "::/95", "2001:db8::/32"]


def test_denied_networks_include_mapped_addresses() -> None:
    allowed, denied = networks(["::/0"]), networks(["10.0.0.0/8", "::ffff:192.0.2.1"])
    for address in ("10.0.0.1", "::ffff:10.0.0.1", "192.0.2.1", "::ffff:192.0.2.1"):
        assert refusal(address, allowed, denied)
    assert refusal("2001:db8::1", allowed, denied) is None


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_like_its_ipv4_address(address: IPv4Address) -> None:
    assert (refusal(str(address)) is None) == (refusal(f"::ffff:{address}") is None)


_GLOBAL = st.integers(0, (1 << 128) - 1).map(IPv6Address)
_EMBEDDED = st.tuples(
    st.sampled_from(["::", "::ffff:0:0", "64:ff9b::", "64:ff9b:1::", "2002::", "2001::"]), st.integers(0, (1 << 32) - 1)
).map(lambda pair: IPv6Address(int(IPv6Address(pair[0])) + pair[1]))


@given(_GLOBAL | _EMBEDDED)
def test_ipv6_is_allowed_only_inside_global_unicast(address: IPv6Address) -> None:
    if refusal(str(address)) is None and address.ipv4_mapped is None:
        assert int(address) >> 125 == 1  # 2000::/3
        assert address.is_global


@given(st.ip_addresses(v=4))
def test_an_embedded_ipv4_address_is_never_allowed_if_refused_alone(address: IPv4Address) -> None:
    for prefix in ("::", "::ffff:", "::ffff:0:", "64:ff9b::", "64:ff9b:1::"):
        if refusal(f"{prefix}{address}") is None:
            assert refusal(str(address)) is None


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_only_global_unicast_is_allowed(address: IPv4Address | IPv6Address) -> None:
    if refusal(str(address)) is None:
        inner = getattr(address, "ipv4_mapped", None) or address
        assert ip_address(str(inner)).is_global
        assert not inner.is_multicast
