"""The PROXY protocol, versions 1 and 2: who really connected, told by a load balancer in front, before anything else is said.

Believed only from listed addresses. Whoever else connects is taken for themselves, and what they send for SMTP.
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

Networks = Collection[IPv4Network | IPv6Network]

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_V1_LIMIT = 107
_V1 = re.compile(rb"PROXY (?:TCP[46] (\S+) (\S+) (\d{1,5}) (\d{1,5})|UNKNOWN[^\r\n]*)\r\n")
_SECONDS = 10.0  # for the header to come


class BadHeader(ValueError):
    """It began like a PROXY header and is none."""


@attrs.frozen
class Told:
    """What a header says: `source` is host and port of the client, None when the proxy speaks for itself; `length` is its octets."""

    source: tuple[str, int] | None
    length: int


def read(octets: bytes) -> Told | None:
    """The header at the start of a connection, None when it is not complete. BadHeader when there is none."""
    if octets[: len(SIGNATURE)] == SIGNATURE[: len(octets)]:
        return _binary(octets)
    if octets[:6] == b"PROXY "[: len(octets)]:
        return _text(octets)
    raise BadHeader("no PROXY header")


def _text(octets: bytes) -> Told | None:
    end = octets.find(b"\r\n", 0, _V1_LIMIT)
    if end < 0:
        if len(octets) >= _V1_LIMIT:
            raise BadHeader("a PROXY header without an end")
        return None
    found = _V1.match(octets)
    if found is None:
        raise BadHeader("a malformed PROXY header")
    if found[1] is None:
        return Told(None, end + 2)
    return Told(_source(found[1].decode("latin-1"), int(found[3])), end + 2)


def _binary(octets: bytes) -> Told | None:
    if len(octets) < 16:
        return None
    version, command, family = octets[12] >> 4, octets[12] & 15, octets[13]
    length = 16 + int.from_bytes(octets[14:16], "big")
    if version != 2 or command > 1:
        raise BadHeader("a PROXY header of another version")
    if len(octets) < length:
        return None
    if command == 0:  # LOCAL: a health check of the proxy's own
        return Told(None, length)
    block = octets[16:length]
    if family == 0x11 and len(block) >= 12:
        return Told((str(Ip4(block[:4])), int.from_bytes(block[8:10], "big")), length)
    if family == 0x21 and len(block) >= 36:
        return Told((str(Ip6(block[:16])), int.from_bytes(block[32:34], "big")), length)
    if family in (0x11, 0x21):
        raise BadHeader("a PROXY header without its addresses")
    return Told(None, length)


def _source(host: str, port: int) -> tuple[str, int]:
    try:
        return str(ip_address(host)), port
    except ValueError:
        raise BadHeader("a PROXY header without an address") from None


def _is_loopback(host: str) -> bool:
    address = ip_address(host)
    return (address.ipv4_mapped or address if isinstance(address, Ip6) else address).is_loopback


class Proxied(Factory):
    """Puts the reading of the header before the protocols of `factory`."""

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
        if any(ip_address(addr.host.partition("%")[0]) in network for network in self.trusted):
            return _Waiting(self)
        return self.factory.buildProtocol(addr)


class _Waiting(Protocol):
    """A connection until its header is complete; then the real protocol takes its place."""

    transport: Any

    def __init__(self, owner: Proxied) -> None:
        self._owner, self._octets = owner, b""

    def connectionMade(self) -> None:
        self._alarm = self._owner.clock.callLater(_SECONDS, self.transport.abortConnection)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._alarm.active():
            self._alarm.cancel()

    def dataReceived(self, data: bytes) -> None:
        self._octets += data
        try:
            told = read(self._octets)
        except BadHeader:
            self.transport.abortConnection()
            return
        if told is not None:
            self._hand_over(told)

    def _hand_over(self, told: Told) -> None:
        self._alarm.cancel()
        transport = self.transport
        if told.source is not None and not _is_loopback(told.source[0]):  # its own machine is not ours: it speaks for itself
            host, port = told.source
            address = IPv6Address("TCP", host, port) if ":" in host else IPv4Address("TCP", host, port)
            transport.getPeer = lambda: address
        protocol = self._owner.factory.buildProtocol(transport.getPeer())
        transport.protocol = protocol
        protocol.makeConnection(transport)
        rest = self._octets[told.length :]
        if rest:
            protocol.dataReceived(rest)
