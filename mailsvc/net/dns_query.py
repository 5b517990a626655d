"""One DNS question to one nameserver, over the reactor's own UDP and TCP sockets. No threads, no cache, no names of our own.

What keeps a forger out: a random id, a socket (and so a source port) for each question, a connected socket that hears only
the server that was asked, and the comparison of the question in the answer with ours.
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

_PAYLOAD = 1232  # octets of UDP that pass everywhere unfragmented (DNS flag day 2020)


class Unanswered(Exception):
    """The nameserver gave no usable answer in time; the text says what happened."""


@attrs.frozen
class Nameserver:
    """A nameserver by IP address and port."""

    host: str
    port: int = 53

    @classmethod
    def parse(cls, text: str) -> Nameserver:
        """`192.0.2.1`, `192.0.2.1:5353`, `2001:db8::1` or `[2001:db8::1]:5353`. ValueError when it is neither."""
        host, port = text, "53"
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or "53"
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        ipaddress.ip_address(host)
        return cls(host, int(port))

    @property
    def six(self) -> bool:
        return ":" in self.host

    def __str__(self) -> str:
        shown = f"[{self.host}]" if self.six else self.host
        return shown if self.port == 53 else f"{shown}:{self.port}"


def question(name: str, kind: str, *, recursive: bool = True) -> dns.message.QueryMessage:
    """A query with EDNS; not `recursive`: for a server that knows by itself. dns.exception.DNSException when `name` is no domain name."""
    flags = dns.flags.RD | dns.flags.AD if recursive else dns.flags.Flag(0)
    return dns.message.make_query(name, kind, use_edns=0, payload=_PAYLOAD, flags=flags, id=secrets.randbits(16))


async def exchange(reactor: Any, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
    """The server's answer within `seconds`: by UDP, and again by TCP when it did not fit. Raises Unanswered."""
    started = reactor.seconds()
    try:
        answer = await _by_udp(reactor, server, query).addTimeout(seconds, reactor)
        if answer.flags & dns.flags.TC:  # 7766 §5: TCP is not optional
            left = max(0.05, seconds - (reactor.seconds() - started))
            answer = await Deferred.fromCoroutine(_by_tcp(reactor, server, query, left)).addTimeout(left, reactor)
    except (TimeoutError, CancelledError):
        raise Unanswered(f"nameserver {server} did not answer in time") from None
    except (ConnectError, ConnectionClosed, OSError) as error:
        raise Unanswered(f"nameserver {server} cannot be reached ({error})") from None
    return answer


def _matching(query: dns.message.QueryMessage, octets: bytes) -> dns.message.QueryMessage | None:
    """The answer to our very question; None for anything else that arrives."""
    try:
        message = dns.message.from_wire(octets)
    except (dns.exception.DNSException, ValueError, IndexError):
        return None
    return message if isinstance(message, dns.message.QueryMessage) and query.is_response(message) else None


class _Asking(DatagramProtocol):
    """One question over a UDP socket of its own."""

    noisy = False

    def __init__(self, server: Nameserver, query: dns.message.QueryMessage) -> None:
        self._server, self._query = server, query
        self.answer: Deferred[dns.message.QueryMessage] = Deferred()

    def startProtocol(self) -> None:
        transport: Any = self.transport
        transport.connect(self._server.host, self._server.port)  # the kernel now drops what others send
        transport.write(self._query.to_wire())

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        found = _matching(self._query, datagram)
        if found is not None and not self.answer.called:
            self.answer.callback(found)

    def connectionRefused(self) -> None:
        if not self.answer.called:
            self.answer.errback(ConnectError(string="connection refused"))


def _by_udp(reactor: Any, server: Nameserver, query: dns.message.QueryMessage) -> Deferred[dns.message.QueryMessage]:
    asking = _Asking(server, query)
    port = reactor.listenUDP(0, asking, interface="::" if server.six else "", maxPacketSize=65535)

    def close(result: Any) -> Any:
        stopped = port.stopListening()
        if isinstance(stopped, Deferred):
            stopped.addErrback(lambda failure: None)
        return result

    return asking.answer.addBoth(close)


class _Stream(Int16StringReceiver):
    """One question over TCP: messages with a length of two octets before them (1035 §4.2.2)."""

    noisy = False
    MAX_LENGTH = 65535

    def __init__(self, query: dns.message.QueryMessage) -> None:
        self._query = query
        self.answer: Deferred[dns.message.QueryMessage] = Deferred()

    def connectionMade(self) -> None:
        self.sendString(self._query.to_wire())

    def stringReceived(self, string: bytes) -> None:
        found = _matching(self._query, string)
        if found is not None and not self.answer.called:
            self.answer.callback(found)

    def connectionLost(self, reason: Failure = ConnectionClosed) -> None:  # type: ignore[assignment]
        if not self.answer.called:
            self.answer.errback(reason)


async def _by_tcp(reactor: Any, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
    endpoint = (TCP6ClientEndpoint if server.six else TCP4ClientEndpoint)(reactor, server.host, server.port, timeout=seconds)
    stream: _Stream = await connectProtocol(endpoint, _Stream(query))
    try:
        return await stream.answer
    finally:
        transport: Any = stream.transport
        transport.abortConnection()
