"""The operator's trusted networks: their clients send without TLS and login, with the API key that the operator configured."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from uuid import UUID

import attrs

from mailsvc.net.address_guard import Network
from mailsvc.net.client_address import unmapped
from mailsvc.smtp.server.proxy_protocol import Networks


@attrs.frozen
class TrustedNetworks:
    """Key IDs by network, the narrowest first.

    A load balancer's address is never trusted, otherwise every client that it does not announce would be. Nor is a link-local
    address, which is the same on every link.
    """

    _keys: tuple[tuple[Network, UUID], ...] = ()
    _balancers: Networks = ()

    @classmethod
    def of(cls, keys: Mapping[str, str], balancers: Networks) -> TrustedNetworks:
        """From the settings, as checked by checks.trusted_networks."""
        found = [(ip_network(network), UUID(key)) for network, key in keys.items()]
        return cls(tuple(sorted(found, key=lambda each: -each[0].prefixlen)), balancers)

    def key_of(self, host: str) -> UUID | None:
        """The ID of the key for mail from this address; None if it is not in a trusted network."""
        if not self._keys:
            return None
        try:
            given = ip_address(host)
        except ValueError:  # for example a Unix socket
            return None
        address = unmapped(given)
        if "%" in host or any(each in network for network in self._balancers for each in (given, address)):
            return None
        return next((key for network, key in self._keys if address in network), None)
