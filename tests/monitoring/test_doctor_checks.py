"""The doctor with its own eyes: a real name server, real servers that greet or do not, the tests' Postgres."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet.protocol import Factory, Protocol

from mailsvc.cli.doctor import examining
from mailsvc.monitoring.doctor import Finding
from mailsvc.settings.schema import Settings
from mailsvc.store.postgres.pool import Pool
from tests.dnsserver import DnsServer

OURS, OTHER = "198.51.99.10", "198.51.99.11"
ZONES = {
    "probe.example": {"MX": ["10 mx.probe.example."]},
    "mx.probe.example": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
    "out.example.com": {"A": [OURS]},
    "10.99.51.198.in-addr.arpa": {"PTR": ["out.example.com."]},
    "11.99.51.198.in-addr.arpa": {"PTR": ["host11.provider.example."]},
    "2.0.0.127.list.example": {"A": ["127.0.0.2"]},
}


class Greeting(Protocol):
    """Says `text` to whoever connects; nothing: it waits, None: it leaves."""

    text: str | None = "220 mx.probe.example ESMTP"

    def connectionMade(self) -> None:
        assert self.transport is not None
        if self.text is None:
            self.transport.loseConnection()
        elif self.text:
            self.transport.write(self.text.encode() + b"\r\n")


@attrs.define(eq=False)
class Place:
    """`ports` is where port 25 of an address really is."""

    pool: Pool
    dns: DnsServer
    reactor: Any
    ports: dict[str, int] = attrs.field(factory=dict)
    listening: list[Any] = attrs.field(factory=list)
    patience: float = 10.0  # what a knock waits ten seconds for, it waits so long for

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reactor, name)

    def connectTCP(self, host: str, port: int, *args: Any, **more: Any) -> Any:
        assert port == 25
        return self.reactor.connectTCP(host, self.ports[host], *args, **more)

    def callLater(self, seconds: float, *args: Any, **more: Any) -> Any:
        return self.reactor.callLater(self.patience if seconds == 10.0 else seconds, *args, **more)

    def listen(self, address: str, text: str | None) -> None:
        factory = Factory.forProtocol(type("Says", (Greeting,), {"text": text}))
        factory.noisy = False
        port = self.reactor.listenTCP(0, factory, interface=address)
        self.ports[address] = port.getHost().port
        self.listening.append(port)

    async def nobody(self, address: str) -> None:
        """A port at which nobody listens any more."""
        self.listen(address, "")
        await self.listening[-1].stopListening()

    async def find(self, **delivery: Any) -> Callable[[str], Finding]:
        given = {"nameservers": (self.dns.address,), "ehlo_name": "out.example.com", "dns_seconds": 9.0} | delivery
        settings = attrs.evolve(Settings(), delivery=attrs.evolve(Settings().delivery, **given))
        found = await examining(settings, self.pool, self, "probe.example", ("list.example",)).examine()
        return lambda check: next(each for each in found if each.check == check)


@pytest_twisted.async_yield_fixture
async def place(pool: Pool) -> AsyncIterator[Place]:
    from twisted.internet import reactor

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 on this machine")
    dns = DnsServer(ZONES)
    await dns.start(reactor)
    made = Place(pool, dns, reactor)
    yield made
    for port in made.listening:
        if port.connected:
            await port.stopListening()
    await dns.stop()


@pytest_twisted.ensureDeferred
async def test_a_machine_on_which_all_is_well(place: Place) -> None:
    place.listen("127.0.0.1", "220 mx.probe.example ESMTP")
    await place.nobody("::1")
    found = await place.find()
    for check in ("dns", "port 25 over IPv4", f"PTR of {OURS}", f"list.example for {OURS}", "clock", "postgres synchronous_commit"):
        assert found(check).state == "good", found(check)
    assert found("port 25 over IPv6").state == "doubtful" and "refused" in found("port 25 over IPv6").found


@pytest_twisted.ensureDeferred
async def test_what_others_would_see_is_seen(place: Place) -> None:
    place.dns.zones["out.example.com"] = {"A": [OURS, OTHER, "198.51.99.12"]}
    place.dns.zones["10.99.51.198.list.example"] = {"A": ["127.0.0.2"]}
    place.dns.rcodes["11.99.51.198.list.example"] = "SERVFAIL"
    place.listen("127.0.0.1", "554 5.7.1 no mail from dynamic addresses")
    place.listen("::1", None)
    found = await place.find()
    assert "greeted with '554 5.7.1 no mail" in found("port 25 over IPv4").found
    assert found("port 25 over IPv6").state == "doubtful"
    assert [found(f"PTR of {each}").state for each in (OURS, OTHER, "198.51.99.12")] == ["good", "bad", "bad"]
    assert "host11.provider.example" in found(f"PTR of {OTHER}").found and "there is none" in found("PTR of 198.51.99.12").found
    assert [found(f"list.example for {each}").state for each in (OURS, OTHER, "198.51.99.12")] == ["bad", "doubtful", "good"]


@pytest_twisted.ensureDeferred
async def test_a_port_that_is_shut_and_servers_that_say_nothing(place: Place) -> None:
    await place.nobody("127.0.0.1")
    place.listen("::1", "")
    place.patience = 2.0
    found = await place.find(sources=(f"{OURS} out.example.com", f"{OTHER} out2.example.com"))
    assert (found("port 25 over IPv4").state, "refused" in found("port 25 over IPv4").found) == ("bad", True)
    assert "did not greet" in found("port 25 over IPv6").found
    assert found("ehlo name").found == "The EHLO name out2.example.com has no address."
    assert found(f"PTR of {OURS}").state == "good"
    place.dns.silent.add("probe.example")
    assert (await place.find(dns_seconds=0.5))("dns").state == "bad"
