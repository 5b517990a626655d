"""Delivery over real sockets: DNS by UDP, servers on loopback that follow a script."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineReceiver

from mailsvc.delivery.connection.connect import CannotConnect, Connector
from mailsvc.delivery.connection.dial import dialer
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.tls_policy import DialOptions, Source
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.service import Delivery
from mailsvc.net.dns import Resolver
from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from mailsvc.smtp.client.client import Timeouts
from tests.delivery.fakes import MESSAGE, Process, Sending, Store, number
from tests.dnsserver import DnsServer, after

EHLO = "250-mx\r\n250 PIPELINING"


class Scripted(LineReceiver):
    """Replies to each verb as the script says: a text, "drop" to close without a reply, or "silence"."""

    script: dict[str, str]
    mails: list[bytes]
    _body: list[bytes] | None = None

    def connectionMade(self) -> None:
        self._say(self.script["greeting"])

    def lineReceived(self, line: bytes) -> None:
        if self._body is None:
            verb = line.split(b" ")[0].decode().upper()
            self._say(self.script.get(verb, self.script.get("else", "250 OK")))
            if verb == "DATA":
                self._body = []
        elif line == b".":
            self.mails.append(b"".join(self._body))
            self._body = None
            self._say(self.script["."])
        else:
            self._body.append(line.removeprefix(b".") + b"\r\n")

    def _say(self, text: str) -> None:
        if text == "drop":
            self.transport.loseConnection()
        elif text != "silence":
            self.sendLine(text.encode())


def script(**changes: str) -> dict[str, str]:
    usual = {"greeting": "220 mx", "EHLO": EHLO, "DATA": "354 go", "dot": "250 2.0.0 taken", "QUIT": "221 bye"} | changes
    usual["."] = usual.pop("dot")
    return usual


class Site:
    """A name server, mail servers on loopback addresses and one port, and all of delivery."""

    def __init__(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.store = Store(self.reactor)
        self.dns = DnsServer({})
        self.servers: list[tuple[str, Factory]] = []
        self.ports: list[Any] = []
        self.given_up: list[Any] = []
        self.port = 0
        self.mails: dict[str, list[bytes]] = {}

    def listen(self, address: str, lines: dict[str, str]) -> None:
        mails = self.mails.setdefault(address, [])

        def build(_: Any) -> Scripted:
            server = Scripted()
            server.script, server.mails = lines, mails
            return server

        factory = Factory()
        factory.noisy = False
        factory.buildProtocol = build  # type: ignore[assignment, method-assign]
        self.open(address, factory)

    def open(self, address: str, factory: Factory) -> None:
        self.servers.append((address, factory))
        for _ in range(20):  # a port that is free at one address may be taken at the next
            try:
                for address, factory in self.servers[len(self.ports) :]:
                    self.ports.append(self.reactor.listenTCP(self.port, factory, interface=address))
                    self.port = self.ports[0].getHost().port
            except CannotListenError:
                self.given_up += self.ports
                self.port, self.ports = 0, []
            else:
                return
        raise AssertionError("no port is free at all addresses")

    async def start(self, policies: Any = None, **settings: Any) -> Site:
        await self.dns.start(self.reactor)
        terms = DeliveryLimits(port=self.port, allow_addresses=("127.0.0.0/8",), poll_seconds=0.05, connect_seconds=2, **settings)
        resolver = Resolver(self.reactor, [self.dns.address], seconds=1)
        connector = Connector(self.reactor, resolver, dialer(self.reactor, "out.example", 2, Timeouts(greeting=2, quit=1)), terms)
        numbers = iter(range(10**6, 10**7))
        self.delivery = Delivery(
            self.reactor, terms, "eu", Process(), self.store, Routes(self.reactor, resolver, {}, port=self.port), connector,
            self.store, self.store, Sending(), lambda: number(next(numbers)), policies=policies,
        )  # fmt: skip
        self.delivery.startService()
        return self

    async def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(6000):
            if condition():
                return
            await after(self.reactor, 0.01)
        raise AssertionError("it did not happen")

    async def stop(self) -> None:
        await self.delivery.stopService()
        for port in self.ports + self.given_up:
            await port.stopListening()
        await self.dns.stop()


def named(*hosts: tuple[int, str, str]) -> dict[str, Any]:
    zones: dict[str, Any] = {"example.com": {"MX": [f"{preference} {name}.example.com." for preference, name, _ in hosts]}}
    return zones | {f"{name}.example.com": {"A": [address]} for _, name, address in hosts}


@pytest_twisted.ensureDeferred
async def test_mail_arrives_by_mx_over_one_connection() -> None:
    site = Site()
    site.listen("127.0.0.1", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    for email in range(1, 21):
        site.store.add(email, "bob@example.com")
    await site.start(connections_max=1, connections_initial=1)
    await site.until(lambda: len(site.store.outcomes) == 20)
    assert all(outcomes == [Delivered("250 2.0.0 taken")] for outcomes in site.store.outcomes.values())
    assert all(mail.endswith(MESSAGE) and mail.startswith(b"DKIM-Signature: ") for mail in site.mails["127.0.0.1"])
    attempt = site.store.settled[0].attempt
    assert attempt is not None
    assert (attempt.host, attempt.address, attempt.tls) == ("mx1.example.com", f"127.0.0.1:{site.port}", None)
    assert "RCPT TO:<bob@example.com>" in attempt.transcript
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_the_second_host_gets_the_mail_if_the_first_refuses_the_session() -> None:
    site = Site()
    site.listen("127.0.0.1", script(greeting="554 not here"))
    site.listen("127.0.0.2", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"), (20, "mx2", "127.0.0.2"), (5, "mx0", "127.0.0.3"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert len(site.mails["127.0.0.2"]) == 1
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_an_address_of_this_machine_is_refused_unless_the_operator_allows_it() -> None:
    site = Site()
    site.listen("127.0.0.1", script())
    dial = dialer(site.reactor, "out.example", 2, Timeouts(greeting=2, quit=1))
    with pytest.raises(CannotConnect, match="is an address of this machine"):
        await dial("127.0.0.1", site.port, "mx.example.com", DialOptions())
    client = await dial("127.0.0.1", site.port, "mx.example.com", DialOptions(ourselves=True))
    await client.quit()  # type: ignore[misc]
    for port in site.ports:
        await port.stopListening()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("source", [None, Source("127.0.0.1", "out.example")])
async def test_too_many_open_files_are_not_a_problem_of_the_source_address(source: Source | None) -> None:
    site = Site()
    dial = dialer(site.reactor, "out.example", 2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(CannotConnect) as failed:
            await dial("127.0.0.9", site.port, "mx.example.com", DialOptions(source=source))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (failed.value.reason, failed.value.unbound) == ("cannot be connected to: this machine has too many open files", False)


@pytest_twisted.ensureDeferred
async def test_a_refused_connection_defers_the_mail() -> None:
    site = Site()
    site.listen("127.0.0.1", script())
    site.dns.zones = named((10, "mx1", "127.0.0.9"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    outcome = site.store.last(1)
    assert isinstance(outcome, Later)
    reason = "mx1.example.com (127.0.0.9) refused the connection."
    assert outcome.meaning is not None and outcome.meaning.kind == "network"
    assert outcome.reason == outcome.meaning.sentence(reason)
    assert site.store.hold_rows["mx1.example.com"].reason == reason
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_connection_closed_after_the_message_is_uncertain_and_before_it_is_not() -> None:
    site = Site()
    site.listen("127.0.0.1", script(dot="drop"))
    site.listen("127.0.0.2", script(DATA="drop"))
    site.dns.zones = named((10, "mx1", "127.0.0.1")) | {
        "other.example": {"MX": ["10 mx.other.example."]},
        "mx.other.example": {"A": ["127.0.0.2"]},
    }
    site.store.add(1, "bob@example.com")
    site.store.add(2, "bob@other.example")
    await site.start()
    await site.until(lambda: len(site.store.outcomes) == 2)
    assert isinstance(site.store.last(1), Uncertain)
    later = site.store.last(2)
    assert isinstance(later, Later)
    assert later.reason.startswith("The connection to mx.other.example failed: ")
    assert later.meaning is not None and later.meaning.kind == "network"
    assert len(site.store.signatures) == 2
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_a_host_with_broken_tls_gets_mail_without_tls() -> None:
    site = Site()
    site.listen("127.0.0.1", script(EHLO="250-mx\r\n250 STARTTLS", STARTTLS="220 go on\r\n220 and on, in clear"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert isinstance(site.store.last(1), Delivered)
    assert site.store.settled[0].attempt is not None
    assert site.store.settled[0].attempt.tls is None
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_refused_recipients_bounce_with_the_servers_reply() -> None:
    site = Site()
    site.listen("127.0.0.1", script(RCPT="550 5.1.1 no such user here"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert site.store.last(1) == Bounced("550 5.1.1 no such user here", suppress=True)
    await site.stop()


@pytest_twisted.ensureDeferred
async def test_shutdown_cuts_a_server_that_never_replies_to_the_message() -> None:
    site = Site()
    site.listen("127.0.0.1", script(dot="silence"))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start(drain_seconds=0.2)
    await site.until(lambda: site.mails["127.0.0.1"])
    await site.stop()
    assert isinstance(site.store.last(1), Uncertain)
