"""IPv4 addresses as a socket for both protocols has them: ::ffff:192.0.2.1 (4291 §2.5.5.2) is compared and shown as 192.0.2.1. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_MAPPED = IPv6Network("::ffff:0:0/96")


def unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def unmapped_host(host: str) -> str:
    """The same for the address of a connection, which may also be empty or have a zone."""
    return str(unmapped(ip_address(host))) if host.startswith("::ffff:") else host


def unmapped_network(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network
