"""The doctor over the network: a real nameserver, real servers that send a greeting or not, and Postgres."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet.protocol import Factory, Protocol

from mailsvc.cli import runner
from mailsvc.cli.doctor import doctor_for
from mailsvc.monitoring.doctor import Finding
from mailsvc.settings.schema import Settings
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess
from tests.dnsserver import DnsServer

ADDRESS, OTHER = "198.51.99.10", "198.51.99.11"
ZONES = {
    "probe.example": {"MX": ["10 mx.probe.example."]},
    "mx.probe.example": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
    "out.example.com": {"A": [ADDRESS]},
    "10.99.51.198.in-addr.arpa": {"PTR": ["out.example.com."]},
    "11.99.51.198.in-addr.arpa": {"PTR": ["host11.provider.example."]},
    "2.0.0.127.list.example": {"A": ["127.0.0.2"]},
}


class Greeting(Protocol):
    """Sends `text` to each client. Empty: waits. None: disconnects."""

    text: str | None = "220 mx.probe.example ESMTP"

    def connectionMade(self) -> None:
        assert self.transport is not None
        if self.text is None:
            self.transport.loseConnection()
        elif self.text:
            self.transport.write(self.text.encode() + b"\r\n")


@attrs.define(eq=False)
class Place:
    """`ports`: the port that replaces port 25 of each address."""

    pool: Pool
    dns: DnsServer
    reactor: Any
    ports: dict[str, int] = attrs.field(factory=dict)
    listening: list[Any] = attrs.field(factory=list)
    timeout: float = 10.0  # replaces timeouts of ten seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reactor, name)

    def connectTCP(self, host: str, port: int, *args: Any, **more: Any) -> Any:
        assert port == 25
        return self.reactor.connectTCP(host, self.ports[host], *args, **more)

    def callLater(self, seconds: float, *args: Any, **more: Any) -> Any:
        return self.reactor.callLater(self.timeout if seconds == 10.0 else seconds, *args, **more)

    def listen(self, address: str, text: str | None) -> None:
        factory = Factory.forProtocol(type("WithText", (Greeting,), {"text": text}))
        factory.noisy = False
        port = self.reactor.listenTCP(0, factory, interface=address)
        self.ports[address] = port.getHost().port
        self.listening.append(port)

    async def closed(self, address: str) -> None:
        """A port that was closed."""
        self.listen(address, "")
        await self.listening[-1].stopListening()

    async def find(self, **delivery: Any) -> Callable[[str], Finding]:
        given = {"nameservers": (self.dns.address,), "ehlo_name": "out.example.com", "dns_seconds": 9.0} | delivery
        settings = attrs.evolve(Settings(), delivery=attrs.evolve(Settings().delivery, **given))
        found = await doctor_for(settings, self.pool, self, "probe.example", ("list.example",)).examine()
        return lambda check: next(each for each in found if each.check == check)


@pytest_twisted.async_yield_fixture
async def place(pool: Pool) -> AsyncIterator[Place]:
    from twisted.internet import reactor

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    dns = DnsServer(ZONES)
    await dns.start(reactor)
    created = Place(pool, dns, reactor)
    yield created
    for port in created.listening:
        if port.connected:
            await port.stopListening()
    await dns.stop()


@pytest_twisted.ensureDeferred
async def test_a_machine_without_problems_is_ok(place: Place) -> None:
    place.listen("127.0.0.1", "220 mx.probe.example ESMTP")
    await place.closed("::1")
    found = await place.find()
    for check in ("dns", "port 25 over IPv4", f"PTR of {ADDRESS}", f"list.example for {ADDRESS}", "clock", "postgres synchronous_commit"):
        assert found(check).state == "ok", found(check)
    assert found("port 25 over IPv6").state == "warning" and "refused" in found("port 25 over IPv6").found


@pytest_twisted.ensureDeferred
async def test_refusals_missing_pointers_and_listings_are_found(place: Place) -> None:
    place.dns.zones["out.example.com"] = {"A": [ADDRESS, OTHER, "198.51.99.12"]}
    place.dns.zones["10.99.51.198.list.example"] = {"A": ["127.0.0.2"]}
    place.dns.rcodes["11.99.51.198.list.example"] = "SERVFAIL"
    place.listen("127.0.0.1", "554 5.7.1 no mail from dynamic addresses")
    place.listen("::1", None)
    found = await place.find()
    assert "answered with '554 5.7.1 no mail" in found("port 25 over IPv4").found
    assert found("port 25 over IPv6").state == "warning"
    assert [found(f"PTR of {each}").state for each in (ADDRESS, OTHER, "198.51.99.12")] == ["ok", "error", "error"]
    assert "host11.provider.example" in found(f"PTR of {OTHER}").found and "there is none" in found("PTR of 198.51.99.12").found
    assert [found(f"list.example for {each}").state for each in (ADDRESS, OTHER, "198.51.99.12")] == ["error", "warning", "ok"]


@pytest_twisted.ensureDeferred
async def test_closed_ports_and_silent_servers_are_found(place: Place) -> None:
    await place.closed("127.0.0.1")
    place.listen("::1", "")
    place.timeout = 2.0
    found = await place.find(sources=(f"{ADDRESS} out.example.com", f"{OTHER} out2.example.com"))
    assert (found("port 25 over IPv4").state, "refused" in found("port 25 over IPv4").found) == ("error", True)
    assert "sent no greeting" in found("port 25 over IPv6").found
    assert found("ehlo name").found == "The EHLO name out2.example.com has no address."
    assert found(f"PTR of {ADDRESS}").state == "ok"
    place.dns.silent.add("probe.example")
    assert (await place.find(dns_seconds=0.5))("dns").state == "error"


@pytest_twisted.ensureDeferred
async def test_the_machine_is_checked_without_a_database(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = InProcess.of(pool, tmp_path, monkeypatch)

    async def away(*arguments: Any, **named: Any) -> None:
        raise Unavailable("Connection refused")

    monkeypatch.setattr(runner, "open_database", away)
    done = await doctor("doctor", "--no-probe", "--json")
    found = {each["check"]: each for each in done.json}
    assert done.status == 1 and "disk" in found and list(found)[-1] == "database"
    assert found["database"]["found"] == "The database cannot be reached: Connection refused."
    assert "disk space" in found["database"]["remedy"]
