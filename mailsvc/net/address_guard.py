"""One check of addresses that we may connect to on somebody else's word: mail exchangers, webhook URLs, attachment links.

It is asked at connect time, with the address that is about to be connected to, never with a name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

# IPv4: every entry of the IANA special-purpose registry is refused, also those that are globally reachable, because no mail server,
# webhook endpoint or attachment has a reason to be there. The first match names the reason.
_SPECIAL_V4: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.0.2.0/24", "for documentation"),
    ("192.31.196.0/24", "reserved for protocols"),  # AS112
    ("192.52.193.0/24", "reserved for protocols"),  # AMT
    ("192.88.99.0/24", "a retired relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "reserved for protocols"),  # AS112
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)

# IPv6: only global unicast is allowed, except for the special-purpose ranges in it. A range that is assigned a meaning later is refused
# until it is added to _GLOBAL_V6.
_GLOBAL_V6 = IPv6Network("2000::/3")  # 4291 §2.4
_SPECIAL_V6: tuple[tuple[str, str], ...] = (
    ("2001::/23", "reserved for protocols"),  # Teredo among them
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "a tunnel (6to4)"),
    ("2620:4f:8000::/48", "reserved for protocols"),  # AS112
    ("3fff::/20", "for documentation"),
)
# Words for what lies outside global unicast; everything else there is "not a global address".
_OUTSIDE_V6: tuple[tuple[str, str], ...] = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0:0/96", "a translation of IPv4"),  # SIIT, 2765 §2.1
    ("::/96", "an embedded IPv4 address"),  # 4291 §2.5.5.1, deprecated
    ("64:ff9b::/96", "a translation of IPv4"),
    ("64:ff9b:1::/48", "a translation of IPv4"),
    ("100::/64", "discarded by routers"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_WORDS: dict[int, tuple[tuple[Network, str], ...]] = {
    4: tuple((ip_network(network), word) for network, word in _SPECIAL_V4),
    6: tuple((ip_network(network), word) for network, word in (*_SPECIAL_V6, *_OUTSIDE_V6)),
}


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """An allow-list from a setting: addresses and networks. ValueError names the one that is neither."""
    return tuple(ip_network(text) for text in texts)


def refusal(address: str, allowed: Sequence[Network] = (), denied: Sequence[Network] = ()) -> str | None:
    """Why we may not connect to `address` (an IP address as text), or None when we may.

    What is in `denied` may never be connected to, what is in `allowed` else always. An IPv4-mapped address is judged by the IPv4
    address inside it, which is where the connection goes; all other forms that embed an IPv4 address are refused.
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
        if found.ipv4_mapped is not None:  # ::ffff:127.0.0.1 reaches 127.0.0.1
            return refusal(str(found.ipv4_mapped), allowed, denied)
    for network, word in _WORDS[found.version]:
        if found in network:
            return f"{address} is {word}"
    if isinstance(found, IPv6Address) and found not in _GLOBAL_V6:
        return f"{address} is not a global address"
    return None
