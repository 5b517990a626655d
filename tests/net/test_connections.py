"""HttpConnection: reused only for the same host, port and address, which are checked for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import Certificate as TwistedCertificate
from twisted.internet.ssl import trustRootFromCertificates
from twisted.logger import capturedLogs
from twisted.protocols.tls import TLSMemoryBIOFactory

from mailsvc.net.address_guard import networks
from mailsvc.net.fetch import Fetcher, FetchError, HttpConnection
from mailsvc.net.urls import Rules
from tests.net.test_fetch import Names, contexts
from tests.smtp.listener import Certificate

RULES = Rules(frozenset(), True, networks(["127.0.0.0/29"]))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer(Protocol):
    """Answers each request by the next of its factory's answers, or hangs up where that is None."""

    factory: Any

    def connectionMade(self) -> None:
        self.factory.addresses.append(self.transport.getHost().host)

    def dataReceived(self, data: bytes) -> None:
        for _ in range(data.count(b"POST /")):
            answer = self.factory.answers.pop(0) if self.factory.answers else OK
            if answer is None:
                self.transport.abortConnection()
            else:
                self.transport.write(answer)

    def connectionLost(self, reason: Any = None) -> None:
        if self.factory.gone is not None:
            gone, self.factory.gone = self.factory.gone, None
            gone.callback(None)


@attrs.define(eq=False)
class Rig:
    port: int
    peer: Any  # the factory of Peer: `addresses` of the connections that it had
    names: Names
    connection: HttpConnection

    async def fetch(self, path: str = "", host: str = "shop.example", **more: Any) -> Any:
        reply = await self.connection.fetch(
            "POST", f"http://{host}:{self.port}/{path}", **({"seconds": 5.0, "keep": 10, "body": b"{}"} | more)
        )
        return reply.status

    @property
    def connections(self) -> int:
        return len(self.peer.addresses)


@pytest_twisted.async_yield_fixture
async def rig() -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    peer: Any = Factory.forProtocol(Peer)
    peer.noisy, peer.answers, peer.addresses, peer.gone = False, [], [], None
    port = await TCP4ServerEndpoint(reactor, 0).listen(peer)
    names = Names([("127.0.0.1",)])
    created = Rig(port.getHost().port, peer, names, Fetcher(reactor, names, RULES).connection())
    yield created
    created.connection.close()
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_connection_is_reused_until_it_is_closed(rig: Rig) -> None:
    assert [await rig.fetch(f"{n}") for n in range(5)] == [200] * 5
    assert (rig.connections, rig.names.lookups) == (1, 5)  # looked up each time
    rig.peer.gone = gone = Deferred()
    rig.connection.close()
    await gone
    assert await rig.fetch() == 200
    assert rig.connections == 2


@pytest_twisted.ensureDeferred
async def test_a_changed_address_needs_a_new_connection(rig: Rig) -> None:
    rig.names.answers = [("127.0.0.1",), ("127.0.0.3", "127.0.0.1"), ("127.0.0.2",), ("127.0.0.2",)]
    assert [await rig.fetch() for _ in range(4)] == [200] * 4
    assert rig.peer.addresses == ["127.0.0.1", "127.0.0.2"]  # the second answer still had the first


@pytest.mark.parametrize("answer", [("127.0.0.9",), ("127.0.0.1", "10.0.0.1"), ("169.254.169.254",)])
@pytest_twisted.ensureDeferred
async def test_a_host_with_a_forbidden_address_is_refused_on_an_open_connection(rig: Rig, answer: tuple[str, ...]) -> None:
    rig.names.answers = [("127.0.0.1",), answer]
    assert await rig.fetch() == 200
    rig.peer.gone = gone = Deferred()
    with pytest.raises(FetchError, match="may not be connected to"):
        await rig.fetch()
    await gone
    assert rig.connections == 1


@pytest_twisted.ensureDeferred
async def test_another_host_or_port_needs_a_new_connection(rig: Rig) -> None:
    assert [await rig.fetch(host="shop.example"), await rig.fetch(host="other.example"), await rig.fetch(host="other.example")] == [200] * 3
    assert rig.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"longer than is kept.",
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    ],
    ids=["it says so", "an answer that is cut", "no end but the end"],
)
@pytest_twisted.ensureDeferred
async def test_some_responses_close_the_connection(rig: Rig, answer: bytes) -> None:
    rig.peer.answers = [answer]
    assert [await rig.fetch(), await rig.fetch()] == [200, 200]
    assert rig.connections == 2


@pytest_twisted.ensureDeferred
async def test_a_connection_closed_while_idle_is_opened_again(rig: Rig) -> None:
    rig.peer.answers = [OK, None, OK]
    assert [await rig.fetch(), await rig.fetch()] == [200, 200]
    assert rig.connections == 2
    rig.peer.answers = [None, None]
    with pytest.raises(FetchError):
        await rig.fetch()
    assert rig.connections == 3  # once
    rig.peer.answers = [None]
    with pytest.raises(FetchError):
        await rig.fetch()
    assert rig.connections == 4  # nobody had hung up on the first request of a connection


@pytest_twisted.ensureDeferred
async def test_an_incomplete_response_is_not_requested_again(rig: Rig) -> None:
    rig.peer.answers = [OK, b"HTTP/1.1 200 OK\r\nContent-Le"]
    assert await rig.fetch() == 200
    with pytest.raises(FetchError, match="no complete response within"):
        await rig.fetch(seconds=0.1)
    assert rig.connections == 1


@pytest_twisted.ensureDeferred
async def test_an_unexpected_response_is_not_used(rig: Rig) -> None:
    rig.peer.answers = [OK + b"HTTP/1.1 418 Smuggled\r\nContent-Length: 0\r\n\r\n", OK]
    assert [await rig.fetch(), await rig.fetch()] == [200, 200]


@pytest_twisted.ensureDeferred
async def test_the_size_limit_applies_to_each_response(rig: Rig) -> None:
    filled = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 15_000 + b"\r\nContent-Length: 0\r\n\r\n"
    rig.peer.answers = [filled] * 6  # more than one answer may have, together
    assert [await rig.fetch() for _ in range(6)] == [200] * 6
    assert rig.connections == 1


@pytest_twisted.ensureDeferred
async def test_one_tls_handshake_serves_several_requests(tmp_path: Path) -> None:
    from twisted.internet import reactor

    peer: Any = Factory.forProtocol(Peer)
    peer.noisy, peer.answers, peer.addresses, peer.gone = False, [], [], None
    certificate, handshakes = Certificate.make(tmp_path, "shop.example"), []
    secured = TLSMemoryBIOFactory(contexts(certificate, handshakes), False, peer)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(secured)
    trust = trustRootFromCertificates([TwistedCertificate.loadPEM(certificate.certificate.read_bytes())])
    connection = Fetcher(reactor, Names([("127.0.0.1",)]), RULES, trust).connection()
    with capturedLogs() as logs:
        for _ in range(3):
            reply = await connection.fetch("POST", f"https://shop.example:{port.getHost().port}/", seconds=5, keep=10, body=b"{}")
            assert reply.status == 200
        peer.gone = gone = Deferred()
        connection.close()
        await gone
    assert handshakes == [b"shop.example"]
    assert [each for each in logs if each["log_level"].name != "info"] == []
    await port.stopListening()
