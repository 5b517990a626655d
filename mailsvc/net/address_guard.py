"""Decides which addresses may be connected to on behalf of others: mail servers, webhook endpoints, attachment URLs. Pure.

`refusal` is called when connecting, with the address itself, never with a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mailsvc.net.client_address import unmapped_network

Network = IPv4Network | IPv6Network

# IPv4: every entry of the IANA special-purpose registry is refused, even if globally reachable: no mail server, webhook endpoint
# or attachment belongs there. The first match gives the reason.
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
    ("192.88.99.0/24", "deprecated (6to4 relay)"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "reserved for protocols"),  # AS112
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)

# IPv6: only global unicast is allowed, without the special-purpose ranges in it. Ranges that are assigned later are refused until
# they are added to _GLOBAL_V6.
_GLOBAL_V6 = IPv6Network("2000::/3")  # 4291 §2.4
_SPECIAL_V6: tuple[tuple[str, str], ...] = (
    ("2001::/23", "reserved for protocols"),  # includes Teredo
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "a tunnel (6to4)"),
    ("2620:4f:8000::/48", "reserved for protocols"),  # AS112
    ("3fff::/20", "for documentation"),
)
# Reasons for ranges outside global unicast. The rest is "not a global address".
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
_REASONS: dict[int, tuple[tuple[Network, str], ...]] = {
    4: tuple((ip_network(network), reason) for network, reason in _SPECIAL_V4),
    6: tuple((ip_network(network), reason) for network, reason in (*_SPECIAL_V6, *_OUTSIDE_V6)),
}


def is_address(text: str) -> bool:
    """Whether it is an IP address rather than a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parses addresses and networks from a setting. Raises ValueError, naming the invalid one."""
    return tuple(unmapped_network(ip_network(text)) for text in texts)


def refusal(address: str, allowed: Sequence[Network] = (), denied: Sequence[Network] = ()) -> str | None:
    """Returns why `address` (an IP address) may not be connected to, or None if it may.

    Addresses in `denied` are always refused; others in `allowed` are always allowed. An IPv4-mapped address is judged by its IPv4
    address, which is where the connection goes. All other forms that embed an IPv4 address are refused.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return f"{address!r} is not an IP address"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None and found.scope_id is None:  # ::ffff:127.0.0.1 reaches 127.0.0.1
        return refusal(str(found.ipv4_mapped), allowed, denied)
    if any(found in network for network in denied):
        return f"{address} is blocked by the operator"
    if any(found in network for network in allowed):
        return None
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        return f"{address} is link-local"
    for network, reason in _REASONS[found.version]:
        if found in network:
            return f"{address} is {reason}"
    if isinstance(found, IPv6Address) and found not in _GLOBAL_V6:
        return f"{address} is not a global address"
    return None
