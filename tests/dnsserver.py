"""A real DNS server on loopback for tests: UDP and TCP on one port, zones as dicts, and all kinds of failures.

    server = DnsServer({"example.com": {"MX": ["10 mx.example.com."], "TXT": ['"v=spf1 -all"']}})
    await server.start(reactor)          # → server.address, "127.0.0.1:<port>", for the nameservers setting
    await server.stop()

The answer is NXDOMAIN for a name that is not in the zones, and empty for one that is but has no record of the type. CNAMEs are followed
within the zones. `zones` and the attributes below can be changed while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol, Factory
from twisted.protocols.basic import Int16StringReceiver

Zones = Mapping[str, Mapping[str, list[str]]]


class DnsServer:
    """Answers from `zones`, and misbehaves for the names in the attributes below."""

    def __init__(self, zones: Zones, ttl: int = 300) -> None:
        self.zones: dict[str, Mapping[str, list[str]]] = dict(zones)
        self.ttl = ttl
        self.rcodes: dict[str, str] = {}  # name → SERVFAIL, REFUSED, …
        self.silent: set[str] = set()  # no answer at all
        self.delays: dict[str, float] = {}  # name → seconds before the answer
        self.truncated: set[str] = set()  # over UDP, the answer is empty and truncated
        self.forged: set[str] = set()  # before the real answer, it sends forged ones: wrong ID, wrong question, malformed
        self.terse: set[str] = set()  # the answer has only the CNAME, not the records of its target
        self.validated: set[str] = set()  # names whose records, or their absence, are validated by DNSSEC
        self.queries: list[tuple[str, str, str]] = []  # queries: name, type, "udp" or "tcp"
        self.ids: list[int] = []
        self.ports: list[int] = []
        self._stops: list[Callable[[], Any]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, reactor: Any) -> None:
        self._reactor = reactor
        for _ in range(20):  # the TCP port with the same number can be in use
            datagrams = reactor.listenUDP(0, _Datagrams(self), interface="127.0.0.1", maxPacketSize=65535)
            self.port = datagrams.getHost().port
            try:
                streams = reactor.listenTCP(self.port, _streams(self), interface="127.0.0.1")
            except (OSError, CannotListenError):
                await maybeDeferred(datagrams.stopListening)
            else:
                self._stops = [datagrams.stopListening, streams.stopListening]
                return
        raise OSError("no free port")

    async def stop(self) -> None:
        for stop in self._stops:
            await maybeDeferred(stop)

    def take(self, data: bytes, transport: str, send: Callable[[bytes], None]) -> None:
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        self.queries.append((name, dns.rdatatype.to_text(query.question[0].rdtype), transport))
        self.ids.append(query.id)
        if name in self.silent:
            return
        if name in self.forged:
            for forged in _forged(query):
                send(forged)
        reply = self.answer(query, name, transport).to_wire(max_size=65535)
        if name in self.delays:
            self._reactor.callLater(self.delays[name], send, reply)
        else:
            send(reply)

    def answer(self, query: dns.message.Message, name: str, transport: str) -> dns.message.Message:
        response = dns.message.make_response(query, recursion_available=True)
        kind = query.question[0].rdtype
        if name in self.rcodes:
            response.set_rcode(dns.rcode.from_text(self.rcodes[name]))
            return response
        if transport == "udp" and name in self.truncated:
            response.flags |= dns.flags.TC
            return response
        validated = True
        for _ in range(10):
            validated = validated and name in self.validated
            response.flags = response.flags | dns.flags.AD if validated else response.flags & ~dns.flags.AD
            if name not in self.zones:
                response.set_rcode(dns.rcode.NXDOMAIN)
                break
            alias = self.zones[name].get("CNAME")
            if alias and kind != dns.rdatatype.CNAME:
                response.answer.append(self._records(name, "CNAME", alias))
                if name in self.terse:
                    return response
                name = alias[0].rstrip(".").lower()
                continue
            texts = self.zones[name].get(dns.rdatatype.to_text(kind), [])
            if texts:
                response.answer.append(self._records(name, dns.rdatatype.to_text(kind), texts))
                return response
            break
        soa = f"ns.invalid. host.invalid. 1 3600 600 86400 {self.ttl}"
        response.authority.append(self._records(name.rpartition(".")[2], "SOA", [soa]))
        return response

    def _records(self, name: str, kind: str, texts: list[str]) -> dns.rrset.RRset:
        return dns.rrset.from_text(name + ".", self.ttl, "IN", kind, *texts)


def _forged(query: dns.message.Message) -> list[bytes]:
    record = dns.rrset.from_text(query.question[0].name, 300, "IN", "A", "192.0.2.66")
    wrong_id = dns.message.make_response(query)
    wrong_id.id = query.id ^ 1
    wrong_id.answer.append(record)
    wrong_question = dns.message.make_response(dns.message.make_query("other.invalid", "A"))
    wrong_question.id = query.id
    wrong_question.answer.append(record)
    return [wrong_id.to_wire(), wrong_question.to_wire(), b"\x00", query.to_wire()]


class _Datagrams(DatagramProtocol):
    noisy = False

    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        def send(data: bytes) -> None:
            if self.transport is not None:
                self.transport.write(data, addr)

        self._server.ports.append(addr[1])
        self._server.take(datagram, "udp", send)


class _Stream(Int16StringReceiver):
    noisy = False
    server: DnsServer

    def stringReceived(self, string: bytes) -> None:
        self.server.take(string, "tcp", self.sendString)


def _streams(server: DnsServer) -> Factory:
    factory = Factory()
    factory.noisy = False

    def build(addr: Any) -> _Stream:
        stream = _Stream()
        stream.server = server
        return stream

    factory.buildProtocol = build  # type: ignore[method-assign]
    return factory


def after(reactor: Any, seconds: float) -> Deferred[None]:
    """Returns a Deferred that fires later, to test deadlines."""
    waiting: Deferred[None] = Deferred()
    reactor.callLater(seconds, waiting.callback, None)
    return waiting
