"""One DNS query to one nameserver, over UDP or TCP. Caching and retries: dns.

Protection against forged answers: a random ID, a separate socket (and source port) for each query, a connected socket that only
receives from this server, and a check that the answer repeats the question.
"""

from __future__ import annotations

import ipaddress
import secrets
from typing import Any

import attrs
import dns.exception
import dns.flags
import dns.message
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.protocol import DatagramProtocol
from twisted.protocols.basic import Int16StringReceiver
from twisted.python.failure import Failure

_PAYLOAD = 1232  # bytes of UDP that are not fragmented (DNS flag day 2020)
_RECORDS_MOST = 500  # of an answer, in all its sections


class NameserverError(Exception):
    """The nameserver gave no usable answer in time. The text is a phrase for people."""


@attrs.frozen
class Nameserver:
    """A nameserver by IP address and port."""

    host: str
    port: int = 53

    @classmethod
    def parse(cls, text: str) -> Nameserver:
        """`192.0.2.1`, `192.0.2.1:5353`, `2001:db8::1` or `[2001:db8::1]:5353`. Raises ValueError."""
        host, port = text, "53"
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or "53"
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        ipaddress.ip_address(host)
        return cls(host, int(port))

    @property
    def ipv6(self) -> bool:
        return ":" in self.host

    def __str__(self) -> str:
        shown = f"[{self.host}]" if self.ipv6 else self.host
        return shown if self.port == 53 else f"{shown}:{self.port}"


def question(name: str, kind: str, *, recursive: bool = True) -> dns.message.QueryMessage:
    """Builds a query with EDNS. Not `recursive`: for an authoritative server. Raises dns.exception.DNSException for an invalid name."""
    flags = dns.flags.RD | dns.flags.AD if recursive else dns.flags.Flag(0)
    return dns.message.make_query(name, kind, use_edns=0, payload=_PAYLOAD, flags=flags, id=secrets.randbits(16))


async def exchange(reactor: Any, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
    """Returns the server's answer: over UDP, or over TCP if it was truncated. Raises NameserverError, also after `seconds`."""
    started = reactor.seconds()
    try:
        answer = await _by_udp(reactor, server, query).addTimeout(seconds, reactor)
        if answer.flags & dns.flags.TC:  # 7766 §5: TCP is not optional
            left = max(0.05, seconds - (reactor.seconds() - started))
            answer = await Deferred.fromCoroutine(_by_tcp(reactor, server, query, left)).addTimeout(left, reactor)
    except (TimeoutError, CancelledError):
        raise NameserverError(f"nameserver {server} did not answer in time") from None
    except (ConnectError, ConnectionClosed, OSError) as error:
        raise NameserverError(f"nameserver {server} cannot be reached ({error})") from None
    return answer


def _take(data: bytes, query: dns.message.QueryMessage, answer: Deferred[dns.message.QueryMessage]) -> None:
    """Fire `answer` if this is one to the query. One with thousands of records would take half a second to parse."""
    if answer.called:
        return
    if sum(int.from_bytes(data[at : at + 2], "big") for at in (6, 8, 10)) > _RECORDS_MOST and int.from_bytes(data[:2], "big") == query.id:
        answer.errback(NameserverError(f"the nameserver answered with more than {_RECORDS_MOST} records"))
    elif (found := _matching(query, data)) is not None:
        answer.callback(found)


def _matching(query: dns.message.QueryMessage, data: bytes) -> dns.message.QueryMessage | None:
    """Parses an answer to this query. None for anything else."""
    try:
        message = dns.message.from_wire(data)
    except (dns.exception.DNSException, ValueError, IndexError):
        return None
    return message if isinstance(message, dns.message.QueryMessage) and query.is_response(message) else None


class _UdpQuery(DatagramProtocol):
    """A query on its own UDP socket."""

    noisy = False

    def __init__(self, server: Nameserver, query: dns.message.QueryMessage) -> None:
        self._server, self._query = server, query
        self.answer: Deferred[dns.message.QueryMessage] = Deferred()

    def startProtocol(self) -> None:
        transport: Any = self.transport
        transport.connect(self._server.host, self._server.port)  # the kernel then drops datagrams from others
        transport.write(self._query.to_wire())

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        _take(datagram, self._query, self.answer)

    def connectionRefused(self) -> None:
        if not self.answer.called:
            self.answer.errback(ConnectError(string="connection refused"))


def _by_udp(reactor: Any, server: Nameserver, query: dns.message.QueryMessage) -> Deferred[dns.message.QueryMessage]:
    protocol = _UdpQuery(server, query)
    port = reactor.listenUDP(0, protocol, interface="::" if server.ipv6 else "", maxPacketSize=65535)

    def close(result: Any) -> Any:
        stopped = port.stopListening()
        if isinstance(stopped, Deferred):
            stopped.addErrback(lambda failure: None)
        return result

    return protocol.answer.addBoth(close)


class _TcpQuery(Int16StringReceiver):
    """A query over TCP: messages with a two-byte length prefix (1035 §4.2.2)."""

    noisy = False
    MAX_LENGTH = 65535

    def __init__(self, query: dns.message.QueryMessage) -> None:
        self._query = query
        self.answer: Deferred[dns.message.QueryMessage] = Deferred()

    def connectionMade(self) -> None:
        self.sendString(self._query.to_wire())

    def stringReceived(self, string: bytes) -> None:
        _take(string, self._query, self.answer)

    def connectionLost(self, reason: Failure = ConnectionClosed) -> None:  # type: ignore[assignment]
        if not self.answer.called:
            self.answer.errback(reason)


async def _by_tcp(reactor: Any, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
    endpoint = (TCP6ClientEndpoint if server.ipv6 else TCP4ClientEndpoint)(reactor, server.host, server.port, timeout=seconds)
    stream: _TcpQuery = await connectProtocol(endpoint, _TcpQuery(query))
    try:
        return await stream.answer
    finally:
        transport: Any = stream.transport
        transport.abortConnection()
