"""The PROXY protocol, versions 1 and 2: a load balancer announces the client's address before anything else is sent.

Only listed addresses are believed. The bytes of any other client are SMTP, and its address is its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address as Ip4
from ipaddress import IPv4Network, IPv6Network, ip_address
from ipaddress import IPv6Address as Ip6
from typing import Any

import attrs
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from mailsvc.net.client_address import unmapped

Networks = Collection[IPv4Network | IPv6Network]

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_V1_LIMIT = 107
_V1 = re.compile(rb"PROXY (?:TCP[46] (\S+) (\S+) (\d{1,5}) (\d{1,5})|UNKNOWN[^\r\n]*)\r\n")
_TIMEOUT = 10.0  # seconds for the header to arrive


class BadHeader(ValueError):
    """The connection does not begin with a valid PROXY header."""


@attrs.frozen
class ProxyHeader:
    """`source` is the client's host and port, None for a connection of the proxy's own; `length` is in bytes."""

    source: tuple[str, int] | None
    length: int


def read(data: bytes) -> ProxyHeader | None:
    """The header at the start of a connection, None if it is incomplete. Raises BadHeader if there is none."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _binary(data)
    if data[:6] == b"PROXY "[: len(data)]:
        return _text(data)
    raise BadHeader("no PROXY header")


def _text(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_LIMIT)
    if end < 0:
        if len(data) >= _V1_LIMIT:
            raise BadHeader("PROXY header without an end")
        return None
    found = _V1.match(data)
    if found is None:
        raise BadHeader("malformed PROXY header")
    if found[1] is None:
        return ProxyHeader(None, end + 2)
    return ProxyHeader(_source(found[1].decode("latin-1"), int(found[3])), end + 2)


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    version, command, family = data[12] >> 4, data[12] & 15, data[13]
    length = 16 + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise BadHeader("unknown version of the PROXY protocol")
    if len(data) < length:
        return None
    if command == 0:  # LOCAL: a health check of the proxy
        return ProxyHeader(None, length)
    block = data[16:length]
    if family == 0x11 and len(block) >= 12:
        return ProxyHeader((str(Ip4(block[:4])), int.from_bytes(block[8:10], "big")), length)
    if family == 0x21 and len(block) >= 36:
        return ProxyHeader((str(unmapped(Ip6(block[:16]))), int.from_bytes(block[32:34], "big")), length)
    if family in (0x11, 0x21):
        raise BadHeader("PROXY header without addresses")
    return ProxyHeader(None, length)


def _source(host: str, port: int) -> tuple[str, int]:
    try:
        return str(unmapped(ip_address(host))), port
    except ValueError:
        raise BadHeader("PROXY header with an invalid address") from None


class ProxyProtocolFactory(Factory):
    """Reads the header before a protocol of `factory` takes over the connection."""

    noisy = False

    def __init__(self, factory: Any, trusted: Networks, clock: IReactorTime) -> None:
        self.factory, self.trusted, self.clock = factory, trusted, clock

    def doStart(self) -> None:
        super().doStart()
        self.factory.doStart()

    def doStop(self) -> None:
        self.factory.doStop()
        super().doStop()

    def buildProtocol(self, addr: Any) -> Any:
        client = unmapped(ip_address(addr.host.partition("%")[0]))
        if any(client in network for network in self.trusted):
            return _HeaderReader(self)
        return self.factory.buildProtocol(addr)


class _HeaderReader(Protocol):
    """The protocol of a connection until its header is complete."""

    transport: Any

    def __init__(self, owner: ProxyProtocolFactory) -> None:
        self._owner, self._data = owner, b""

    def connectionMade(self) -> None:
        self._timeout = self._owner.clock.callLater(_TIMEOUT, self.transport.abortConnection)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._timeout.active():
            self._timeout.cancel()

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        try:
            header = read(self._data)
        except BadHeader:
            self.transport.abortConnection()
            return
        if header is not None:
            self._hand_over(header)

    def _hand_over(self, header: ProxyHeader) -> None:
        self._timeout.cancel()
        transport = self.transport
        # A loopback address would be of the balancer's machine.
        if header.source is not None and not ip_address(header.source[0]).is_loopback:
            host, port = header.source
            address = IPv6Address("TCP", host, port) if ":" in host else IPv4Address("TCP", host, port)
            transport.getPeer = lambda: address
        protocol = self._owner.factory.buildProtocol(transport.getPeer())
        transport.protocol = protocol
        protocol.makeConnection(transport)
        rest = self._data[header.length :]
        if rest:
            protocol.dataReceived(rest)
