"""How TLSA records change a connection (RFC 7672 §2)."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted

from mailsvc.delivery.connection.connect import Connector
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


def secured(found: Any, *, mx: bool = True, address: bool = True, dane: bool = True, **settings: Any) -> tuple[DeliveryRig, Any]:
    """Delivery with DNS answers that are validated by DNSSEC, and TLSA lookups return `found`."""
    rig = DeliveryRig(dane=dane, **settings)
    server = rig.server("example.com", "1.1.1.1")
    server.tls = "TLSv1.3"
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


def test_dane_takes_precedence_over_mta_sts() -> None:
    policies = Given({"example.com": Policy("enforce", 86400, ("elsewhere.example.com",))})
    rig, server = secured(Records(NAME, (GOOD,), True), policies=policies)
    assert isinstance(rig.store.last(1), Delivered)
    assert [how.mode for how in server.dialled] == ["dane"]


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("addresses", [{"A": ["1.1.1.1"]}, {"AAAA": ["2606:4700::1111"]}, {"A": ["1.1.1.1"], "AAAA": ["2606:4700::1111"]}])
@pytest.mark.parametrize(("insecure", "mode"), [("", "dane"), ("example.com", "opportunistic"), ("mx.example.com", "opportunistic")])
async def test_hosts_with_addresses_of_one_family_are_verified(addresses: dict[str, list[str]], insecure: str, mode: str) -> None:
    from twisted.internet import reactor

    dialled: list[DialOptions] = []

    async def dial(address: str, port: int, host: str, options: DialOptions) -> Any:
        dialled.append(options)

    server = DnsServer({"example.com": {"MX": ["10 mx.example.com."]}, "mx.example.com": addresses, NAME: {"TLSA": [f"3 1 1 {'78' * 32}"]}})
    server.validated = {"example.com", "mx.example.com", NAME} - {insecure}
    await server.start(reactor)
    try:
        resolver = Resolver(reactor, [server.address])
        route = await Routes(reactor, resolver, {}).resolve("example.com")
        assert isinstance(route, Route)
        await Connector(reactor, resolver, dial, DeliveryLimits(dane=True)).connect(route)
    finally:
        await server.stop()
    assert [(options.mode, options.tlsa) for options in dialled] == [(mode, (GOOD,) if mode == "dane" else ())]
