"""Networks of the operator's own: who comes from one needs neither TLS nor login, and sends with a key that the operator has named."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from uuid import UUID

import attrs

from mailsvc.net.address_guard import Network
from mailsvc.smtp.server.proxy_protocol import Networks


@attrs.frozen
class TrustedNetworks:
    """The ids of keys by network, the narrowest first.

    A load balancer is nobody's neighbour, or else everybody who comes through it without being named would be one. Neither is a
    link-local address: it is the same on every link.
    """

    _keys: tuple[tuple[Network, UUID], ...] = ()
    _balancers: Networks = ()

    @classmethod
    def of(cls, keys: Mapping[str, str], balancers: Networks) -> TrustedNetworks:
        """From the settings, which checks.trusted_networks has looked at."""
        found = [(ip_network(network), UUID(key)) for network, key in keys.items()]
        return cls(tuple(sorted(found, key=lambda each: -each[0].prefixlen)), balancers)

    def key_of(self, host: str) -> UUID | None:
        """The id of the key that mail from this address counts for; None: for nobody's without a login."""
        if not self._keys:
            return None
        try:
            told = ip_address(host)
        except ValueError:  # a Unix socket, for example
            return None
        address = _plain(told)
        if "%" in host or any(each in network for network in self._balancers for each in (told, address)):
            return None
        return next((key for network, key in self._keys if address in network), None)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """A socket for both protocols has IPv4 addresses as ::ffff:192.0.2.1 (4291 §2.5.5.2)."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
