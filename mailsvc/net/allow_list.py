"""Allow-lists: the networks from which an API key or the dashboard can be used. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network

MOST = 20  # networks in a list
SMALLEST_V6 = 64  # bits; of an IPv6 client, only its /64 is known


def read(text: str) -> str:
    """An address or a network in its usual form. Raises ValueError with the rest of a sentence."""
    try:
        network = ip_network(text.strip())
    except ValueError:
        raise ValueError("must be addresses or networks, such as 192.0.2.0/24 or 2001:db8::/48") from None
    if network.version == 6 and network.prefixlen > SMALLEST_V6:
        raise ValueError(f"must have IPv6 networks of /{SMALLEST_V6} or larger")
    return str(network)


def allows(address: str, networks: Sequence[str] | None) -> bool:
    """Whether a client may connect. `address`: one address, or the /64 of an IPv6 client. An empty list allows everybody."""
    if not networks:
        return True
    try:
        client = ip_network(address, strict=False)
    except ValueError:  # a Unix socket
        return False
    if isinstance(client, IPv6Network) and client.network_address.ipv4_mapped is not None:
        client = ip_network(client.network_address.ipv4_mapped)
    return any(_inside(client, network) for network in _parsed(tuple(networks)))


def _inside(client: IPv4Network | IPv6Network, network: IPv4Network | IPv6Network) -> bool:
    return client.version == network.version and client.subnet_of(network)  # type: ignore[arg-type]


@lru_cache(1000)
def _parsed(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text) for text in texts)
