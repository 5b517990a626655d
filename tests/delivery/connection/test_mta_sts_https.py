"""MTA-STS policies over real HTTPS: a third-party web server with certificates of our own authority, and real DNS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import pytest
import pytest_twisted

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
from tests.https_server import Authority, Diverted, Web, serving

HOST = "mta-sts.example.com"
PATH = "/.well-known/mta-sts.txt"
ENFORCE = "version: STSv1\r\nmode: enforce\r\nmx: mx.example.com\r\nmax_age: 604800\r\n"
ANNOUNCED = {"_mta-sts.example.com": {"TXT": ['"v=STSv1; id=1;"']}, HOST: {"A": ["127.0.0.1"]}}


@attrs.define(eq=False)
class Rig:
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
    with serving(tmp_path_factory.mktemp("web"), authority, HOST) as web:
        yield web


@pytest_twisted.async_yield_fixture
async def rig(web: Web, authority: Authority) -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    web.proof, web.status, web.headers, web.body, web.requests = "good", 200, {"Content-Type": "text/plain"}, ENFORCE, []
    dns = DnsServer(ANNOUNCED)
    await dns.start(reactor)
    yield Rig(web, dns, Diverted(reactor, web.server.server_address[1]), authority.trust)
    await dns.stop()


@pytest_twisted.ensureDeferred
async def test_a_policy_is_fetched_with_a_verified_certificate_and_stored_for_all_processes(rig: Rig) -> None:
    assert await rig.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert rig.web.requests == [(HOST, PATH)]
    rig.begin()  # another process
    rig.web.status = 500
    assert await rig.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert len(rig.web.requests) == 1


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain; charset=utf-8"}])
@pytest_twisted.ensureDeferred
async def test_a_policy_without_a_type_counts_as_text(rig: Rig, headers: dict[str, str]) -> None:
    rig.web.headers = headers
    assert await rig.found() is not None


@pytest.mark.parametrize(
    ("changes", "requests", "result"),
    [
        ({"proof": "of another name"}, 0, "sts-webpki-invalid"),
        ({"proof": "expired"}, 0, "sts-webpki-invalid"),
        ({"proof": "of an unknown authority"}, 0, "sts-webpki-invalid"),
        ({"status": 404}, 1, "sts-policy-fetch-error"),
        ({"status": 301, "headers": {"Location": f"https://{HOST}/elsewhere"}}, 1, "sts-policy-fetch-error"),  # 8461 §3.3
        ({"status": 304}, 1, "sts-policy-fetch-error"),
        ({"headers": {"Content-Type": "text/html"}}, 1, "sts-policy-fetch-error"),
        ({"body": ENFORCE + "x: y\r\n" * 20_000}, 1, "sts-policy-invalid"),
        ({"body": ENFORCE.replace("STSv1", "STSv2")}, 1, "sts-policy-invalid"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_response_that_violates_the_standard_is_no_policy(rig: Rig, changes: Any, requests: int, result: str) -> None:
    for name, value in changes.items():
        setattr(rig.web, name, value)
    assert await rig.found() is None
    assert (len(rig.web.requests), rig.results, rig.kept) == (requests, {result}, {})


@pytest_twisted.ensureDeferred
async def test_a_policy_host_in_our_own_network_is_not_contacted(rig: Rig) -> None:
    rig.begin(allowed="192.0.2.0/24")
    assert await rig.found() is None
    assert (rig.web.requests, rig.results) == ([], {"sts-policy-fetch-error"})


@pytest_twisted.ensureDeferred
async def test_a_stored_policy_applies_while_the_server_fails_and_a_new_id_replaces_it(rig: Rig) -> None:
    await rig.found()
    rig.web.proof, rig.web.body = "expired", ENFORCE.replace("enforce", "none")
    rig.announce("2")
    rig.time.later += 600  # the record has left the cache
    assert await rig.found() == Policy("enforce", 604800, ("mx.example.com",))
    assert (len(rig.web.requests), rig.results) == (1, {"sts-webpki-invalid"})
    rig.web.proof = "good"
    rig.time.later += 120  # the same id failed a moment ago
    assert await rig.found() is not None and len(rig.web.requests) == 1
    rig.time.later += 600
    assert await rig.found() is None
    assert len(rig.web.requests) == 2
    rig.announce("3")
    rig.web.body = ENFORCE.replace("max_age: 604800", "max_age: 60")
    rig.time.later += 600
    assert await rig.found() is not None
    rig.dns.zones.pop("_mta-sts.example.com")  # takes nothing back, but what is kept ends
    rig.time.later += 600
    assert await rig.found() is None


@pytest_twisted.ensureDeferred
async def test_no_mail_goes_to_a_host_that_the_policy_does_not_name_or_that_is_not_verified(rig: Rig) -> None:
    site = Site()
    site.listen("127.0.0.1", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start(policies=rig.policies)
    await site.until(lambda: site.store.outcomes)
    first = site.store.last(1)
    assert isinstance(first, Later) and "mx1.example.com is not named by the MTA-STS policy of example.com" in first.reason
    rig.announce("2")
    rig.web.body = ENFORCE.replace("mx: mx", "mx: mx1")
    rig.time.later += 600
    site.store.add(2, "bob@example.com")
    site.delivery.wake()
    await site.until(lambda: len(site.store.outcomes) == 2)
    second = site.store.last(2)
    assert (
        isinstance(second, Later) and "does not offer STARTTLS" in second.reason and "example.com requires it by MTA-STS" in second.reason
    )
    assert site.mails["127.0.0.1"] == []
    rig.announce("3")
    rig.web.body = rig.web.body.replace("enforce", "testing")
    rig.time.later += 600
    site.store.add(3, "bob@example.com")
    site.delivery.wake()
    await site.until(lambda: len(site.store.outcomes) == 3)
    assert isinstance(site.store.last(3), Delivered) and len(site.mails["127.0.0.1"]) == 1
    assert "starttls-not-supported" in {key[-1] for key in site.delivery.attempts.tls_counts.counts}
    await site.stop()
