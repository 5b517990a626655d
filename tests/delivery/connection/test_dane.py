"""How TLSA records change a connection (RFC 7672 §2)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.delivery.connection.connect import Connector, Unreachable
from mailsvc.delivery.connection.route import Route, Routes
from mailsvc.delivery.connection.tls_policy import NO_POLICY, DialOptions, TlsPolicy, required_policy
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.net.dns import Mx, NxDomain, Records, Resolver, Temporary, Tlsa
from mailsvc.outcome import Deferred as Later
from mailsvc.outcome import Delivered
from tests.delivery.connection.test_mta_sts import Given
from tests.delivery.fakes import DeliveryRig
from tests.dnsserver import DnsServer

GOOD = Tlsa(3, 1, 1, b"x" * 32)
NAME = "_25._tcp.mx.example.com"


def secured(
    found: Any, *, mx: bool = True, address: bool = True, dane: bool = True, tls: str | None = "TLSv1.3", **settings: Any
) -> tuple[DeliveryRig, Any]:
    """Delivery with DNS answers that are validated by DNSSEC, and TLSA lookups return `found`."""
    rig = DeliveryRig(dane=dane, **settings)
    server = rig.server("example.com", "1.1.1.1")
    server.tls = tls
    queries: list[str] = []

    async def exchangers(domain: str) -> Any:
        return Records(domain, (Mx(10, "mx.example.com"),), mx)

    async def addresses(host: str) -> Any:
        return Records(host, ("1.1.1.1",), address)

    async def tlsa(name: str) -> Any:
        queries.append(name)
        return found

    rig.names.mx, rig.names.addresses, rig.names.tlsa = exchangers, addresses, tlsa  # type: ignore[method-assign]
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    server.queries = queries
    return rig, server


def test_usable_tlsa_records_verify_the_certificate() -> None:
    rig, server = secured(Records(NAME, (GOOD,), True))
    assert isinstance(rig.store.last(1), Delivered)
    [how] = server.dialled
    assert (how.mode, how.tlsa) == ("dane", (GOOD,))
    assert server.queries == [NAME]
    attempt = rig.store.settled[0].attempt
    assert attempt is not None
    assert attempt.tls == "TLSv1.3, certificate verified by DANE"


def test_unusable_tlsa_records_require_tls() -> None:
    _, server = secured(Records(NAME, (Tlsa(0, 0, 1, b"x" * 32),), True))
    assert [how.mode for how in server.dialled] == ["encrypted"]


@pytest.mark.parametrize(
    ("found", "settings"),
    [
        (NxDomain(NAME), {}),
        (Records(NAME, (), True), {}),
        (Records(NAME, (GOOD,), False), {}),
        (Records(NAME, (GOOD,), True), {"mx": False}),
        (Records(NAME, (GOOD,), True), {"address": False}),
        (Records(NAME, (GOOD,), True), {"dane": False}),
    ],
)
def test_records_without_dnssec_change_nothing(found: Any, settings: dict[str, Any]) -> None:
    rig, server = secured(found, **settings)
    assert isinstance(rig.store.last(1), Delivered)
    assert [how.mode for how in server.dialled] == ["opportunistic"]


def test_a_failed_tlsa_lookup_makes_the_host_unreachable() -> None:
    rig, server = secured(Temporary("SERVFAIL"))
    outcome = rig.store.last(1)
    assert isinstance(outcome, Later)
    assert "The TLSA records of mx.example.com could not be looked up" in outcome.reason.replace("the TLSA", "The TLSA")
    assert server.dialled == []


@pytest.mark.parametrize(
    ("found", "tls", "result"),
    [
        (Records(NAME, (GOOD,), True), "TLSv1.3", "success"),
        (Records(NAME, (GOOD,), True), None, "starttls-not-supported"),
        (Temporary("SERVFAIL"), "TLSv1.3", "dnssec-invalid"),
    ],
)
def test_sessions_are_counted_for_tls_reports(found: Any, tls: str | None, result: str) -> None:
    rig, _ = secured(found, tls=tls)
    assert {key[1:]: count for key, count in rig.delivery.attempts.tls_counts.counts.items()} == {
        ("example.com", "tlsa", "mx.example.com", result): 1
    }
    if tls is None:
        [outcome] = rig.store.settled[0].outcomes
        assert "its TLSA records require TLS (DANE)." in outcome.outcome.reason


def test_a_failed_session_is_counted_if_another_host_takes_the_mail() -> None:
    rig = DeliveryRig(dane=True)
    for preference, tls in (1, None), (2, "TLSv1.3"):
        server = rig.server("example.com", f"1.1.1.{preference}", host=f"mx{preference}.example.com", preference=preference)
        server.tls = tls
    exchangers, addresses = rig.names.mx, rig.names.addresses

    async def signed_exchangers(domain: str) -> Any:
        return attrs.evolve(await exchangers(domain), authenticated=True)

    async def signed_addresses(host: str) -> Any:
        return attrs.evolve(await addresses(host), authenticated=True)

    async def tlsa(name: str) -> Any:
        return Records(name, (GOOD,), True)

    rig.names.mx, rig.names.addresses, rig.names.tlsa = signed_exchangers, signed_addresses, tlsa  # type: ignore[method-assign]
    rig.store.add(1, "x@example.com")
    rig.start().run(3)
    assert isinstance(rig.store.last(1), Delivered)
    assert {key[1:]: count for key, count in rig.delivery.attempts.tls_counts.counts.items()} == {
        ("example.com", "tlsa", "mx1.example.com", "starttls-not-supported"): 1,
        ("example.com", "tlsa", "mx2.example.com", "success"): 1,
    }


def test_dane_takes_precedence_over_mta_sts() -> None:
    policies = Given({"example.com": Policy("enforce", 86400, ("elsewhere.example.com",))})
    rig, server = secured(Records(NAME, (GOOD,), True), policies=policies)
    assert isinstance(rig.store.last(1), Delivered)
    assert [how.mode for how in server.dialled] == ["dane"]


async def dialled(zones: dict[str, dict[str, list[str]]], validated: set[str], failing: str = "") -> list[DialOptions]:
    """How the hosts of example.com are connected to. DNSSEC validates the records of these names."""
    from twisted.internet import reactor

    found: list[DialOptions] = []

    async def dial(address: str, port: int, host: str, options: DialOptions) -> Any:
        found.append(options)

    server = DnsServer(zones)
    server.validated = validated
    await server.start(reactor)
    try:
        resolver = Resolver(reactor, [server.address])
        route = await Routes(reactor, resolver, {}).resolve("example.com")
        assert isinstance(route, Route)
        if failing:
            await resolver.addresses(failing)  # in the cache
            server.rcodes[failing] = "SERVFAIL"
        with suppress(Unreachable):
            await Connector(reactor, resolver, dial, DeliveryLimits(dane=True)).connect(route)
    finally:
        await server.stop()
    return found


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("addresses", [{"A": ["1.1.1.1"]}, {"AAAA": ["2606:4700::1111"]}, {"A": ["1.1.1.1"], "AAAA": ["2606:4700::1111"]}])
@pytest.mark.parametrize(("insecure", "mode"), [("", "dane"), ("example.com", "opportunistic"), ("mx.example.com", "opportunistic")])
async def test_hosts_with_addresses_of_one_family_are_verified(addresses: dict[str, list[str]], insecure: str, mode: str) -> None:
    zones = {"example.com": {"MX": ["10 mx.example.com."]}, "mx.example.com": addresses, NAME: {"TLSA": [f"3 1 1 {'78' * 32}"]}}
    found = await dialled(zones, {"example.com", "mx.example.com", NAME} - {insecure})
    assert [(options.mode, options.tlsa) for options in found] == [(mode, (GOOD,) if mode == "dane" else ())]


ALIAS = {
    "example.com": {"MX": ["10 mx.example.com."]},
    "mx.example.com": {"CNAME": ["mx.example.net."]},
    "mx.example.net": {"A": ["1.1.1.1"]},
    NAME: {"TLSA": [f"3 1 1 {'78' * 32}"]},
}


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("insecure", "mode"),
    [("", "dane"), ("mx.example.net", "dane"), *((name, "opportunistic") for name in ("mx.example.com", NAME, "example.com"))],
)
async def test_a_signed_alias_of_an_unsigned_host_has_tlsa_records_of_its_own(insecure: str, mode: str) -> None:
    """RFC 7672 §2.2.2."""
    found = await dialled(ALIAS, {*ALIAS} - {insecure})
    assert [(options.mode, options.names[:1]) for options in found] == [(mode, ("mx.example.com",) if mode == "dane" else ())]


@pytest_twisted.ensureDeferred
async def test_an_alias_of_an_unsigned_host_that_cannot_be_looked_up_is_unreachable() -> None:
    assert await dialled(ALIAS, {*ALIAS} - {"mx.example.net"}, failing="mx.example.com") == []


class Shared(DeliveryRig):
    """A host of two domains: DNSSEC validates the MX records of example.com, but not those of example.org. Both share a lane."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(dane=True, **settings)
        self.host = self.server("example.com", "1.1.1.1")
        self.host.tls = "TLSv1.3"
        self.tlsa: Any = Records(NAME, (GOOD,), True)
        self.names.mx, self.names.addresses, self.names.tlsa = self.exchangers, self.addresses, self.records  # type: ignore[method-assign]
        self.start()

    async def exchangers(self, domain: str) -> Any:
        return Records(domain, (Mx(10, "mx.example.com"),), domain == "example.com")

    async def addresses(self, host: str) -> Any:
        return Records(host, ("1.1.1.1",), True)

    async def records(self, name: str) -> Any:
        return self.tlsa

    def send(self, *domains: str) -> list[str]:
        """One mail after another. Returns how the host was dialled."""
        for identity, domain in enumerate(domains):
            self.store.add(identity, f"x@{domain}")
            self.run(3.0)
        return [how.mode for how in self.host.dialled]


def test_a_signed_domain_is_not_sent_over_a_connection_of_an_unsigned_one() -> None:
    rig = Shared()
    assert rig.send("example.org", "example.com", "example.org", "example.com") == ["opportunistic", "dane"]
    assert [mail.connection for mail in rig.host.mails] == [1, 2, 2, 2]


def test_an_unsigned_domain_uses_the_connection_of_a_signed_one() -> None:
    assert Shared().send("example.com", "example.org") == ["dane"]


@pytest.mark.parametrize("order", [("example.com", "example.org"), ("example.org", "example.com")])
def test_dane_does_not_replace_the_mta_sts_policy_of_an_unsigned_domain(order: tuple[str, str]) -> None:
    """Its MX records may be forged, and name a host with valid TLSA records."""
    rig = Shared(policies=Given({"example.org": Policy("enforce", 86400, ("elsewhere.example.org",))}))
    rig.send(*order)
    outcomes = [rig.store.last(identity) for identity in range(2)]
    assert [type(outcome) for outcome in outcomes] == [Delivered if domain == "example.com" else Later for domain in order]
    [deferred] = [outcome for outcome in outcomes if isinstance(outcome, Later)]
    assert "mx.example.com is not named by the MTA-STS policy of example.org" in deferred.reason


def test_dane_verifies_a_host_that_an_mta_sts_policy_names() -> None:
    rig = Shared(policies=Given({"example.org": Policy("enforce", 86400, ("mx.example.com",))}))
    assert rig.send("example.com", "example.org") == ["dane"]
    assert isinstance(rig.store.last(1), Delivered)


def test_a_failed_tlsa_lookup_delays_only_signed_domains() -> None:
    rig = Shared()
    rig.tlsa = Temporary("SERVFAIL")
    assert rig.send("example.org", "example.com", "example.org") == ["opportunistic"] * 2
    assert [type(rig.store.last(identity)) for identity in range(3)] == [Delivered, Later, Delivered]
    later = rig.store.last(1)
    assert isinstance(later, Later) and "DNSSEC protects the recipient's domain" in later.reason


def test_mail_to_signed_and_unsigned_domains_needs_tlsa_records() -> None:
    assert required_policy(False, (), [True, False]) == TlsPolicy(because="DNSSEC protects the recipient's domain", dane=True)
    assert required_policy(False, (), [None]).dane and not required_policy(True, (), [None]).signed
    assert required_policy(True, (), [True, True]).signed and required_policy(False, (), [False]) == NO_POLICY
