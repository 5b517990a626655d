"""One check of addresses that we may connect to on somebody else's word: mail exchangers, webhook URLs, attachment links.

It is asked at connect time, with the address that is about to be connected to, never with a name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

# What no stranger may send us to, with the word for it. The first match names the reason (IANA special-purpose registries).
_CLOSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "a retired relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("64:ff9b::/96", "a translation of IPv4"),
    ("64:ff9b:1::/48", "a translation of IPv4"),
    ("100::/64", "discarded by routers"),
    ("2001::/23", "reserved for protocols"),  # Teredo among them
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "a tunnel (6to4)"),
    ("3fff::/20", "for documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_DENIED = tuple((ip_network(network), word) for network, word in _CLOSED)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """An allow-list from a setting: addresses and networks. ValueError names the one that is neither."""
    return tuple(ip_network(text) for text in texts)


def refusal(address: str, allowed: Sequence[Network] = (), denied: Sequence[Network] = ()) -> str | None:
    """Why we may not connect to `address` (an IP address as text), or None when we may.

    What is in `denied` may never be connected to, what is in `allowed` else always.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return f"{address!r} is not an IP address"
    if any(found in network for network in denied):
        return f"{address} is closed by the operator"
    if any(found in network for network in allowed):
        return None
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return f"{address} is link-local"
        inner = found.ipv4_mapped or _compatible(found)
        if inner is not None:  # ::ffff:127.0.0.1 reaches 127.0.0.1
            return refusal(str(inner), allowed, denied)
    for network, word in _DENIED:
        if found in network:
            return f"{address} is {word}"
    return None


def _compatible(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside the deprecated ::a.b.c.d form (4291 §2.5.5.1)."""
    number = int(address)
    return IPv4Address(number) if 1 < number < 1 << 32 else None
