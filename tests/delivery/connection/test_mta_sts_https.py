"""MTA-STS policies over real HTTPS: a third-party web server with certificates of our own authority, and real DNS."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.ssl import Certificate, trustRootFromCertificates

from mailsvc.delivery.connection.mta_sts import Policies
from mailsvc.delivery.connection.mta_sts_file import over_https
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.net.address_guard import networks
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import Rules
from mailsvc.outcome import Deferred as Later
from mailsvc.outcome import Delivered
from tests.delivery.test_loopback import Site, named, script
from tests.dnsserver import DnsServer

HOST = "mta-sts.example.com"
PATH = "/.well-known/mta-sts.txt"
ENFORCE = "version: STSv1\r\nmode: enforce\r\nmx: mx.example.com\r\nmax_age: 604800\r\n"
ANNOUNCED = {"_mta-sts.example.com": {"TXT": ['"v=STSv1; id=1;"']}, HOST: {"A": ["127.0.0.1"]}}


class Authority:
    """A certificate authority. `root` is its certificate file."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "An authority")])
        self.root = self._certificate(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    @property
    def trust(self) -> Any:
        return trustRootFromCertificates([Certificate.loadPEM(self.root.public_bytes(serialization.Encoding.PEM))])

    def server(self, folder: Path, host: str, days: int = 1) -> ssl.SSLContext:
        """A certificate for `host`."""
        key, file = ec.generate_private_key(ec.SECP256R1()), folder / f"{host}{days}{id(self)}.pem"
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        made = self._certificate(name, key.public_key(), x509.SubjectAlternativeName([x509.DNSName(host)]), days)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _certificate(self, name: x509.Name, key: Any, extension: Any, days: int = 1) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder().issuer_name(self._name).subject_name(name).public_key(key).serial_number(x509.random_serial_number())
        )
        made = made.not_valid_before(now - datetime.timedelta(days=10)).not_valid_after(now + datetime.timedelta(days=days))
        return made.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())


@attrs.define(eq=False)
class Web:
    """A web server on loopback. It returns `status`, `headers` and `body`; `asked` has the host and path of each request."""

    contexts: dict[str, ssl.SSLContext]
    proof: str = "good"  # which of them the next connection gets
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=lambda: {"Content-Type": "text/plain"})
    body: str = ENFORCE
    asked: list[tuple[str | None, str]] = attrs.field(factory=list)
    server: Any = None

    def start(self) -> None:
        web = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                self.request = web.contexts[web.proof].wrap_socket(self.request, server_side=True)
                super().setup()

            def do_GET(self) -> None:
                web.asked.append((self.headers["Host"], self.path))
                self.send_response(web.status)
                for name, value in ({} if self.path != PATH else web.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(web.body.encode())

            def log_message(self, *_: object) -> None:
                """No access log."""

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that does not trust the certificate closes the connection during the handshake."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Diverted:
    """The reactor, with port 443 redirected to the web server, and a clock that is `later` by some seconds."""

    def __init__(self, reactor: Any, port: int) -> None:
        self._reactor, self._port, self.later = reactor, port, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def seconds(self) -> float:
        return float(self._reactor.seconds()) + self.later

    def connectTCP(self, host: str, port: int, *args: Any, **more: Any) -> Any:
        assert port == 443
        return self._reactor.connectTCP(host, self._port, *args, **more)


@attrs.define(eq=False)
class World:
    """Policies from the web server, announced by a name server. `kept` stands in for the table."""

    web: Web
    dns: DnsServer
    time: Diverted
    trust: Any
    kept: dict[str, Any] = attrs.field(factory=dict)
    policies: Policies = attrs.field(init=False)
    tls_counts: TlsCounts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self, allowed: str = "127.0.0.0/8") -> None:
        """The policies of a new process. `allowed`: private networks that it may fetch from."""
        resolver = Resolver(self.time, [self.dns.address], seconds=2)
        fetcher = Fetcher(self.time, resolver, Rules(frozenset({443}), False, networks([allowed])), self.trust)
        self.tls_counts = TlsCounts(self.time)
        self.policies = Policies(self.time, resolver, over_https(fetcher), self, self.tls_counts)

    def announce(self, identity: str) -> None:
        self.dns.zones["_mta-sts.example.com"] = {"TXT": [f'"v=STSv1; id={identity};"']}

    async def policy(self, domain: str) -> Any:
        return self.kept.get(domain)

    async def keep_policy(self, domain: str, *row: Any) -> None:
        self.kept[domain] = row

    async def found(self) -> Policy | None:
        pairs = await self.policies.of({"example.com"})
        return pairs[0][1] if pairs else None

    @property
    def results(self) -> set[str]:
        return {key[-1] for key in self.tls_counts.counts}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("web")
    made = Web(
        {
            "good": authority.server(folder, HOST),
            "of another name": authority.server(folder, "www.example.com"),
            "expired": authority.server(folder, HOST, days=-1),
            "of a stranger": Authority().server(folder, HOST),
        }
    )
    made.start()
    yield made
    made.stop()


@pytest_twisted.async_yield_fixture
async def world(web: Web, authority: Authority) -> AsyncIterator[World]:
    from twisted.internet import reactor

    web.proof, web.status, web.headers, web.body, web.asked = "good", 200, {"Content-Type": "text/plain"}, ENFORCE, []
    dns = DnsServer(ANNOUNCED)
    await dns.start(reactor)
    yield World(web, dns, Diverted(reactor, web.server.server_address[1]), authority.trust)
    await dns.stop()


@pytest_twisted.ensureDeferred
async def test_a_policy_is_fetched_with_a_verified_certificate_and_stored_for_all_processes(world: World) -> None:
    assert await world.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert world.web.asked == [(HOST, PATH)]
    world.begin()  # another process
    world.web.status = 500
    assert await world.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert len(world.web.asked) == 1


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain; charset=utf-8"}])
@pytest_twisted.ensureDeferred
async def test_a_policy_without_a_type_counts_as_text(world: World, headers: dict[str, str]) -> None:
    world.web.headers = headers
    assert await world.found() is not None


@pytest.mark.parametrize(
    ("changes", "asked", "result"),
    [
        ({"proof": "of another name"}, 0, "sts-policy-fetch-error"),
        ({"proof": "expired"}, 0, "sts-policy-fetch-error"),
        ({"proof": "of a stranger"}, 0, "sts-policy-fetch-error"),
        ({"status": 404}, 1, "sts-policy-fetch-error"),
        ({"status": 301, "headers": {"Location": f"https://{HOST}/elsewhere"}}, 1, "sts-policy-fetch-error"),  # 8461 §3.3
        ({"status": 304}, 1, "sts-policy-fetch-error"),
        ({"headers": {"Content-Type": "text/html"}}, 1, "sts-policy-fetch-error"),
        ({"body": ENFORCE + "x: y\r\n" * 20_000}, 1, "sts-policy-invalid"),
        ({"body": ENFORCE.replace("STSv1", "STSv2")}, 1, "sts-policy-invalid"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_response_that_violates_the_standard_is_no_policy(world: World, changes: Any, asked: int, result: str) -> None:
    for name, value in changes.items():
        setattr(world.web, name, value)
    assert await world.found() is None
    assert (len(world.web.asked), world.results, world.kept) == (asked, {result}, {})


@pytest_twisted.ensureDeferred
async def test_a_policy_host_in_our_own_network_is_not_contacted(world: World) -> None:
    world.begin(allowed="192.0.2.0/24")
    assert await world.found() is None
    assert (world.web.asked, world.results) == ([], {"sts-policy-fetch-error"})


@pytest_twisted.ensureDeferred
async def test_a_stored_policy_applies_while_the_server_fails_and_a_new_id_replaces_it(world: World) -> None:
    await world.found()
    world.web.proof, world.web.body = "expired", ENFORCE.replace("enforce", "none")
    world.announce("2")
    world.time.later += 600  # the record has left the cache
    assert await world.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert (len(world.web.asked), world.results) == (1, {"sts-policy-fetch-error"})
    world.web.proof = "good"
    world.time.later += 120  # the same id failed a moment ago
    assert await world.found() is not None and len(world.web.asked) == 1
    world.time.later += 600
    assert await world.found() is None
    assert len(world.web.asked) == 2
    world.announce("3")
    world.web.body = ENFORCE.replace("max_age: 604800", "max_age: 60")
    world.time.later += 600
    assert await world.found() is not None
    world.dns.zones.pop("_mta-sts.example.com")  # takes nothing back, but what is kept ends
    world.time.later += 600
    assert await world.found() is None


@pytest_twisted.ensureDeferred
async def test_no_mail_goes_to_a_host_that_the_policy_does_not_name_or_that_is_not_verified(world: World) -> None:
    site = Site()
    site.listen("127.0.0.1", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start(policies=world.policies)
    await site.until(lambda: site.store.outcomes)
    first = site.store.last(1)
    assert isinstance(first, Later) and "mx1.example.com is not named by the MTA-STS policy of example.com" in first.reason
    world.announce("2")
    world.web.body = ENFORCE.replace("mx: mx", "mx: mx1")
    world.time.later += 600
    site.store.add(2, "bob@example.com")
    site.delivery.wake()
    await site.until(lambda: len(site.store.outcomes) == 2)
    second = site.store.last(2)
    assert (
        isinstance(second, Later) and "does not offer STARTTLS" in second.reason and "example.com requires it by MTA-STS" in second.reason
    )
    assert site.mails["127.0.0.1"] == []
    world.announce("3")
    world.web.body = world.web.body.replace("enforce", "testing")
    world.time.later += 600
    site.store.add(3, "bob@example.com")
    site.delivery.wake()
    await site.until(lambda: len(site.store.outcomes) == 3)
    assert isinstance(site.store.last(3), Delivered) and len(site.mails["127.0.0.1"]) == 1
    assert "starttls-not-supported" in {key[-1] for key in site.delivery.attempts.tls_counts.counts}
    await site.stop()
