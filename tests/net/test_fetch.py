"""The fetcher over real sockets: it connects to the address that it checked, and limits the time and size of responses."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import Certificate as TwistedCertificate
from twisted.internet.ssl import trustRootFromCertificates
from twisted.internet.task import LoopingCall
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory

from mailsvc.net import fetch
from mailsvc.net.address_guard import networks
from mailsvc.net.dns import Records, Resolver
from mailsvc.net.fetch import HEAD, HOSTS, Fetcher, FetchError
from mailsvc.net.urls import Rules
from tests.dnsserver import DnsServer
from tests.smtp.listener import Certificate

LOCAL = Rules(frozenset(), True, networks(["127.0.0.1"]))


@attrs.define
class Names:
    """A resolver that gives each answer once, then the last one again."""

    answers: list[tuple[str, ...]]
    lookups: int = 0

    async def addresses(self, host: str) -> Records[str]:
        self.lookups += 1
        return Records(host, self.answers[min(self.lookups, len(self.answers)) - 1])


class Peer(Protocol):
    """Sends `answer` after the header of each request. An empty part closes the connection."""

    factory: Any

    def connectionMade(self) -> None:
        self.got = b""
        self.factory.open += 1

    def dataReceived(self, data: bytes) -> None:
        begun = b"\r\n\r\n" in self.got
        self.got += data
        if b"\r\n\r\n" in self.got and not begun:
            self.factory.requests.append(self)
            for part in self.factory.answer:
                self.transport.write(part) if part else self.transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.open -= 1
        self.factory.lost.append(reason.type)
        if self.factory.gone is not None:
            gone, self.factory.gone = self.factory.gone, None
            gone.callback(None)


@attrs.define(eq=False)
class Rig:
    factory: Any
    port: int

    @property
    def url(self) -> str:
        return f"http://shop.example:{self.port}/hook?x=1"

    async def fetch(self, rules: Rules = LOCAL, trust: Any = None, url: str | None = None, **more: Any) -> Any:
        from twisted.internet import reactor

        fetcher = Fetcher(reactor, Names([("127.0.0.1",)]), rules, trust)
        return await fetcher.fetch("POST", url or self.url, **({"seconds": 5.0, "keep": 10, "body": b"{}"} | more))


def factory(*answer: bytes) -> Any:
    created: Any = Factory.forProtocol(Peer)
    created.noisy = False
    created.answer, created.requests, created.open, created.gone, created.lost = list(answer), [], 0, None, []
    return created


@pytest_twisted.async_yield_fixture
async def rig() -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    created = factory(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\nok")
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(created)
    yield Rig(created, port.getHost().port)
    await port.stopListening()


async def refused(work: Any) -> str:
    with pytest.raises(FetchError) as error:
        await work
    return str(error.value)


@pytest_twisted.ensureDeferred
async def test_a_request_is_sent_and_its_response_returned(rig: Rig) -> None:
    reply = await rig.fetch(headers={"x-a": "b"})
    assert (reply.status, reply.body, reply.whole, reply.header("retry-after")) == (200, b"ok", True, "7")
    [peer] = rig.factory.requests
    head, _, body = peer.got.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /hook?x=1 http/1.1"
    assert f"host: shop.example:{rig.port}".encode() in lines
    assert b"accept-encoding: identity" in lines
    assert b"x-a: b" in lines
    assert body == b"{}"


@pytest_twisted.ensureDeferred
async def test_redirects_are_not_followed(rig: Rig) -> None:
    rig.factory.answer = [b"HTTP/1.1 307 No\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"]
    assert (await rig.fetch()).status == 307
    assert len(rig.factory.requests) == 1


@pytest_twisted.ensureDeferred
async def test_a_large_body_is_cut_and_the_connection_closed(rig: Rig) -> None:
    rig.factory.answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", b"0123456789abcdef"]
    gone: Deferred[None] = Deferred()
    rig.factory.gone = gone
    reply = await rig.fetch()
    assert (reply.body, reply.whole) == (b"0123456789", False)
    await gone  # although 100 MB were announced


@pytest_twisted.ensureDeferred
async def test_compressed_bodies_are_not_decompressed(rig: Rig) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)[:1000]
    rig.factory.answer = [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n", bomb]
    reply = await rig.fetch(keep=2000)
    assert (reply.body, reply.coded) == (bomb, True)


@pytest.mark.parametrize(
    "endless", [b"X-%d: " + b"a" * 1000 + b"\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 50], ids=["headers", "early answers"]
)
@pytest_twisted.ensureDeferred
async def test_an_endless_header_is_cut(rig: Rig, endless: bytes) -> None:
    first = b"HTTP/1.1 200 OK\r\n" if endless.startswith(b"X") else b""
    rig.factory.answer = [first, *[endless] * (3 * HEAD // len(endless))]
    assert await refused(rig.fetch(keep=4 * HEAD)) == f"The header of the response has more than {HEAD} bytes."
    assert await refused(rig.fetch(keep=10)) in (f"The {what} more than {size} bytes." for what, size in TOO_LARGE)


TOO_LARGE = (("header of the response has", HEAD), ("response has", HEAD + 10))  # which comes first depends on how it arrives


@pytest_twisted.ensureDeferred
async def test_others_are_served_while_a_body_of_small_chunks_is_parsed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from twisted.internet import reactor

    monkeypatch.setattr(fetch, "SECONDS", 0.0)  # a slice is one piece, however fast the machine is
    clock: Any = reactor
    rig.factory.answer = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\na\r\n" * 10_000] * 10, b"0\r\n\r\n"]
    turns: list[float] = []
    watch = LoopingCall(lambda: turns.append(clock.seconds()))
    done = watch.start(0)
    reply = await rig.fetch(keep=1_000_000)
    watch.stop()
    await done
    assert reply.body == b"a" * 100_000 and reply.whole
    assert len(turns) > 100  # of about 146 pieces; without slices, 64 kB at a time, about 17


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"], ids=["silence", "half a head", "half a body"]
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_hangs_times_out(rig: Rig, answer: bytes) -> None:
    rig.factory.answer = [answer] if answer else []
    gone: Deferred[None] = Deferred()
    rig.factory.gone = gone
    began = time.monotonic()
    assert await refused(rig.fetch(seconds=0.2)) == "There was no complete response within 0.2 s."
    assert time.monotonic() - began < 2
    await gone


@pytest_twisted.ensureDeferred
async def test_a_server_of_another_protocol_is_an_error(rig: Rig) -> None:
    rig.factory.answer = [b"220 mail.example ESMTP\r\n"]
    assert (await refused(rig.fetch(seconds=1))).startswith("The response is not valid HTTP: ")


_BODY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 99999999999 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 " + b"9" * 5000 + b" x\r\n\r\n",
        b"HTTP/1.1 -200 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 0 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 600 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/99999999999.x 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na\0b: c\r\n\r\n",
        _BODY + b"zz\r\n",
        _BODY + b"-5\r\nabc",
        _BODY + b"f" * 5000 + b"\r\n",
        _BODY + b"5;" + b"x" * 5000,
        _BODY + b"5\r\nabcdeXX",
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_invalid_response_is_an_error(rig: Rig, answer: bytes) -> None:
    """The caller always gets FetchError with a short message, never another exception or an impossible status."""
    from twisted.internet import reactor

    rig.factory.answer = [answer]
    connection = Fetcher(reactor, Names([("127.0.0.1",)]), LOCAL).connection()
    for reused in (False, True):
        work = connection.fetch("POST", rig.url, seconds=5.0, keep=10, body=b"{}") if reused else rig.fetch()
        message = await refused(work)
        assert message.startswith("The response is not valid HTTP: ") and len(message) < 300
    connection.close()


@pytest.mark.parametrize(
    "field", [b"Retry-After: \xff\xfe", b"Set-Cookie: \xff=\0", b"Set-Cookie: a=b; expires=Thu, 99 Foo 99999999999", b"Location: \xff://"]
)
@pytest_twisted.ensureDeferred
async def test_header_fields_with_any_bytes_are_readable(rig: Rig, field: bytes) -> None:
    rig.factory.answer = [b"HTTP/1.1 503 \xff\r\nContent-Length: 0\r\n" + field + b"\r\n\r\n"]
    reply = await rig.fetch()
    assert reply.status == 503 and isinstance(reply.header("retry-after"), str | None)


@pytest_twisted.ensureDeferred
async def test_a_response_without_memory_is_refused(rig: Rig) -> None:
    assert await refused(rig.fetch(reserve=lambda size: False)) == "There is not enough memory for the response at the moment."


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"])
@pytest_twisted.ensureDeferred
async def test_a_response_that_ends_too_early_is_reported(rig: Rig, begun: bytes) -> None:
    rig.factory.answer = [begun, b""]
    assert await refused(rig.fetch()) == "The connection was closed before the response was complete."


@pytest_twisted.ensureDeferred
async def test_a_closed_port_is_reported(rig: Rig) -> None:
    from tests.end_to_end.rig import free_port

    assert await refused(rig.fetch(url=f"http://shop.example:{free_port()}/")) == "The connection was refused."


@pytest.mark.parametrize("answer", [("93.184.216.34", "127.0.0.1"), ("127.0.0.1",), ("::ffff:127.0.0.1",), ("93.184.216.34", "10.0.0.1")])
@pytest_twisted.ensureDeferred
async def test_all_addresses_of_a_host_are_checked_before_connecting(answer: tuple[str, ...]) -> None:
    memory = MemoryReactorClock()
    fetching = Fetcher(memory, Names([answer]), Rules()).fetch("GET", "https://shop.example/", seconds=5, keep=1)
    assert "may not be connected to" in await refused(fetching)
    assert memory.tcpClients == []


@pytest_twisted.ensureDeferred
async def test_a_dns_change_after_the_check_has_no_effect() -> None:
    """The name is public when checked and loopback afterwards."""
    memory, names = MemoryReactorClock(), Names([("93.184.216.34",), ("127.0.0.1",)])
    fetcher = Fetcher(memory, names, Rules())
    first = Deferred.fromCoroutine(fetcher.fetch("GET", "https://shop.example/", seconds=5, keep=1))
    assert [client[:2] for client in memory.tcpClients] == [("93.184.216.34", 443)]
    memory.advance(6)
    assert "There was no complete response" in await refused(first)
    assert names.lookups == 1
    assert "127.0.0.1 is loopback" in await refused(fetcher.fetch("GET", "https://shop.example/", seconds=5, keep=1))
    assert len(memory.tcpClients) == 1


@pytest_twisted.ensureDeferred
async def test_a_dns_change_has_no_effect_with_a_real_nameserver() -> None:
    from twisted.internet import reactor

    server = DnsServer({"shop.example": {"A": ["93.184.216.34"]}}, ttl=0)
    await server.start(reactor)
    try:
        memory = MemoryReactorClock()
        fetcher = Fetcher(memory, Resolver(reactor, [server.address], size=0), Rules())
        first = Deferred.fromCoroutine(fetcher.fetch("GET", "https://shop.example/", seconds=5, keep=1))
        while not memory.tcpClients:
            await _turn(reactor)
        server.zones["shop.example"] = {"A": ["127.0.0.1"]}
        assert "127.0.0.1 is loopback" in await refused(fetcher.fetch("GET", "https://shop.example/", seconds=5, keep=1))
        assert [client[0] for client in memory.tcpClients] == ["93.184.216.34"]
        memory.advance(6)
        await refused(first)
    finally:
        await server.stop()


async def _turn(reactor: Any) -> None:
    turned: Deferred[None] = Deferred()
    reactor.callLater(0.005, turned.callback, None)
    await turned


@pytest_twisted.ensureDeferred
async def test_the_certificate_is_verified_for_the_host(tmp_path: Path) -> None:
    from twisted.internet import reactor

    created = factory(b"HTTP/1.1 204 No\r\n\r\n")
    names: list[bytes | None] = []
    good, bad = Certificate.make(tmp_path, "shop.example"), Certificate.make(tmp_path, "other.example")
    for certificate, trusted, outcome in ((good, good, 204), (good, bad, "verify failed"), (bad, bad, "is not for this host")):
        secured = TLSMemoryBIOFactory(contexts(certificate, names), False, created)
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(secured)
        rig = Rig(created, port.getHost().port)
        trust = trustRootFromCertificates([TwistedCertificate.loadPEM(trusted.certificate.read_bytes())])
        fetching = rig.fetch(trust=trust, url=f"https://shop.example:{rig.port}/")
        if outcome == 204:
            assert (await fetching).status == 204
        else:
            assert str(outcome) in await refused(fetching)
        await port.stopListening()
    assert set(names) == {b"shop.example"}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest_twisted.ensureDeferred
async def test_a_connection_that_is_no_longer_needed_is_closed_without_a_reset(tmp_path: Path, scheme: str) -> None:
    """Within TLS also with an alert: without one, the reason would be ConnectionLost."""
    from twisted.internet import reactor

    certificate = Certificate.make(tmp_path, "shop.example")
    peer: Any = factory(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    serving = peer if scheme == "http" else TLSMemoryBIOFactory(contexts(certificate, []), False, peer)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(serving)
    trust = trustRootFromCertificates([TwistedCertificate.loadPEM(certificate.certificate.read_bytes())])
    connection = Fetcher(reactor, Names([("127.0.0.1",)]), LOCAL, trust).connection()
    peer.gone = gone = Deferred()
    await connection.fetch("POST", f"{scheme}://shop.example:{port.getHost().port}/", seconds=5.0, keep=10, body=b"{}")
    connection.close()
    await gone
    assert peer.lost == [ConnectionDone]
    await port.stopListening()


@pytest.mark.parametrize("host", ["my_shop.example", "my--shop.example", "xn--i-7iq.example", "shop.example"])
@pytest_twisted.ensureDeferred
async def test_a_host_that_idna_does_not_allow_is_verified_like_others(tmp_path: Path, host: str) -> None:
    from twisted.internet import reactor

    created = factory(b"HTTP/1.1 204 No\r\n\r\n")
    names: list[bytes | None] = []
    for named in (host, "other.example"):
        certificate = Certificate.make(tmp_path, named)
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(
            TLSMemoryBIOFactory(contexts(certificate, names), False, created)
        )
        rig = Rig(created, port.getHost().port)
        trust = trustRootFromCertificates([TwistedCertificate.loadPEM(certificate.certificate.read_bytes())])
        fetching = rig.fetch(trust=trust, url=f"https://{host}:{rig.port}/")
        if named == host:
            assert (await fetching).status == 204
        else:
            assert "the certificate is not for this host" in await refused(fetching)
        await port.stopListening()
    assert set(names) == {host.encode()}


@pytest_twisted.ensureDeferred
async def test_an_ipv6_address_in_the_url(rig: Rig) -> None:
    from twisted.internet import reactor

    port = await TCP6ServerEndpoint(reactor, 0, interface="::1").listen(rig.factory)
    number = port.getHost().port
    fetcher = Fetcher(reactor, Names([("::1",)]), Rules(frozenset(), True, networks(["::1"])))
    assert (await fetcher.fetch("GET", f"http://[::1]:{number}/a?b=%41", seconds=5.0, keep=10)).status == 200
    request = rig.factory.requests[0].got
    assert request.startswith(b"GET /a?b=%41 HTTP/1.1\r\n") and b"Host: [::1]:%d\r\n" % number in request
    await port.stopListening()


def test_the_tls_context_cache_is_limited() -> None:
    fetcher = Fetcher(MemoryReactorClock(), Names([("127.0.0.1",)]), LOCAL)
    first = fetcher.tls("0.example")
    for number in range(HOSTS):
        fetcher.tls(f"{number}.example")
    assert fetcher.tls("0.example") is first
    for number in range(1, HOSTS + 1):
        fetcher.tls(f"{number}.example")
    assert fetcher.tls("0.example") is not first


def contexts(certificate: Any, names: list[bytes | None]) -> Callable[..., Any]:
    from tests.smtp.listener import _Contexts

    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.use_privatekey_file(str(certificate.key))
    context.use_certificate_file(str(certificate.certificate))
    context.set_tlsext_servername_callback(lambda connection: names.append(connection.get_servername()))
    return _Contexts(context)  # type: ignore[return-value]
