"""Which clients are in a trusted network, with which key, and that nothing they send changes that. Dialogues: tests/conversations/relay."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.address import IPv4Address

from mailsvc.relay.ports import Ports
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.smtp.server.proxy_protocol import SIGNATURE
from mailsvc.smtp.server.session import Limits
from mailsvc.store.people.api_keys import Caller, digest
from mailsvc.store.postgres.errors import Unavailable
from tests.relay.harness import ACCOUNT, BALANCER, KEY, ME, OTHER, TOKEN, RelayClient, World
from tests.smtp.harness import Transport

NEAR, HOST = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.1.2.3", NEAR),
        ("::ffff:10.1.2.3", NEAR),
        ("::ffff:a01:203", NEAR),
        ("10.1.2.7", HOST),  # the narrowest network
        ("10.1.2.9", None),  # a load balancer
        ("::ffff:10.1.2.9", None),
        ("10.1.3.1", None),
        ("::10.1.2.3", None),
        ("2001:db8::7", NEAR),
        ("2001:db9::7", None),
        ("2001:db8::9", None),
        ("::ffff:10.1.2.11", None),  # a load balancer, named as the socket has it
        ("fe80::1%eth0", None),
        ("10.1.2.3%eth0", None),
        ("10.1.2.3, 10.1.2.3", None),
        ("localhost", None),
        ("", None),
    ],
)
def test_the_key_of_an_address(address: str, key: UUID | None) -> None:
    networks = {"10.1.2.0/24": str(NEAR), "10.1.2.7": str(HOST), "2001:db8::/32": str(NEAR), "fe80::/10": str(NEAR)}
    balancers = [ip_network(text) for text in ("10.1.2.9", "2001:db8::9", "::ffff:10.1.2.11")]
    assert TrustedNetworks.of(networks, balancers).key_of(address) == key
    assert TrustedNetworks.of({}, balancers).key_of(address) is None


def trusted(world: World, number: str = "587", host: str = "10.1.2.3") -> RelayClient:
    client = world.connect(number, host)
    client.command("EHLO me")
    return client


def send(client: RelayClient) -> str:
    return client.mail(ME + b"\r\nx\r\n")


def trace(world: World) -> str:
    """The protocol in the newest Received field."""
    return world.intake.messages[-1].partition(b" with ")[2].split()[0].decode()


def test_received_does_not_claim_authentication() -> None:
    world = World()
    client = trusted(world)
    assert send(client).startswith("250 2.0.0 Queued as ") and trace(world) == "ESMTP"
    assert client.mail(ME + b"\r\nx\r\n", parameters=" SMTPUTF8").startswith("250") and trace(world) == "UTF8SMTP"
    client.command("STARTTLS")
    client.command("EHLO me")
    assert send(client).startswith("250") and trace(world) == "ESMTPS"
    client.login(OTHER)
    assert send(client).startswith("250") and trace(world) == "ESMTPSA"
    client.command("HELO me")
    assert send(client).startswith("250") and trace(world) == "SMTP"
    assert [caller.key_id for caller in world.intake.callers] == [KEY] * 3 + [UUID(int=3)] * 2


def test_a_revoked_key_ends_the_trust_in_open_sessions() -> None:
    world = World()
    client = trusted(world)
    assert send(client).startswith("250")
    callers, world.keys.callers = world.keys.callers, {}
    assert send(client) == "530 5.7.0 Authentication required"
    assert send(trusted(world)) == "530 5.7.0 Must issue a STARTTLS command first"
    client.command("STARTTLS")
    client.command("EHLO me")
    assert send(client) == "530 5.7.0 Authentication required"
    world.keys.callers = {digest(OTHER): callers[digest(OTHER)]}
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")


def test_an_unavailable_key_store_is_a_temporary_failure() -> None:
    world = World()
    world.keys.error = Unavailable("away")
    client = trusted(world)
    assert send(client) == "454 4.7.0 Temporary authentication failure"
    world.keys.error = None
    assert send(client).startswith("250")
    world.keys.error = Unavailable("away")
    assert send(client) == "451 4.3.0 Mail cannot be stored at the moment, try again later"


def test_trusted_clients_share_the_connections_and_rate_of_the_key() -> None:
    world = World(rate=2)
    lines = [trusted(world, host=f"10.1.2.{n}") for n in (1, 2, 3)]
    assert [send(client)[:9] for client in lines] == ["250 2.0.0", "250 2.0.0", "421 4.7.0"] and lines[2].closed
    assert send(lines[0]).startswith("451 4.7.1")
    elsewhere = world.connect("465")
    elsewhere.client.protocol.session.tls = {}
    elsewhere.command("EHLO me")
    assert elsewhere.login(TOKEN).startswith("421 4.7.0 Too many connections with this API key")
    lines[0].command("STARTTLS")  # keeps its place, and takes no second one
    lines[0].command("EHLO me")
    world.clock.advance(1)
    assert send(lines[0]).startswith("250")
    for client in lines[:2]:
        client.disconnect()
    assert len(world.relay.per_key) == len(world.relay.per_address) == 0
    assert send(trusted(world)).startswith("250")


def test_a_login_releases_the_connection_of_the_networks_key() -> None:
    world = World()
    full = [trusted(world) for _ in range(2)]
    assert all(send(client).startswith("250") for client in full)
    client = trusted(world, "465", "10.1.2.4")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    full[0].command("STARTTLS")
    full[0].command("EHLO me")
    assert full[0].login(OTHER).startswith("235")
    assert send(trusted(world)).startswith("250")


def test_the_session_log_is_split_at_a_login() -> None:
    world = World()
    world.keys.callers[digest(OTHER)] = Caller(UUID(int=8), UUID(int=3), "sending_access", None, None)
    client = trusted(world, "465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.mail(ME + b"\r\nx\r\n", "secret@example.net").startswith("250")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(first, before), (second, after)] = world.sessions.entries
    assert (first, before.key_id, before.mails) == (ACCOUNT, KEY, 1) and "secret@" in (before.transcript or "")
    assert (second, after.key_id, after.mails) == (UUID(int=8), UUID(int=3), 1) and "secret@" not in (after.transcript or "")


def test_a_login_with_the_same_key_continues_the_session_log() -> None:
    world = World()
    client = trusted(world)
    send(client)
    client.command("STARTTLS")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(account, receipt)] = world.sessions.entries
    assert (account, receipt.mails) == (ACCOUNT, 2)


def test_a_trusted_client_without_mail_leaves_no_log_and_has_no_limits() -> None:
    world = World(unauthenticated_bytes=100)
    client = trusted(world)
    world.clock.advance(61)
    for _ in range(30):
        client.command("NOOP")
    assert not client.closed and len(world.relay.per_key) == 0
    client.command("QUIT")
    assert not world.sessions.entries
    other = world.connect("25", "10.1.2.3")  # where no login is required
    world.clock.advance(61)
    assert other.closed


# Behind a load balancer


def behind(world: World, host: str, data: bytes) -> tuple[Any, bytes]:
    """Connect from `host` to a port with PROXY, send `data` and a mail in clear text, and return the replies."""
    ports = Ports("mx.test", Limits(), object(), world.relay.open_session, world.clock, [BALANCER])
    [port] = ports.make({"587": "haproxy:tcp:587"})
    address, transport = IPv4Address("TCP", host, 999), Transport()
    transport.peerAddr = address  # type: ignore[assignment]
    transport.protocol = port.factory.buildProtocol(address)
    transport.protocol.makeConnection(transport)
    for byte in data + b"EHLO me\r\nMAIL FROM:<me@example.com>\r\n":
        transport.protocol.dataReceived(bytes([byte]))
    heard: bytes = transport.value()
    transport.protocol.connectionLost()
    return transport, heard


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("10.1.2.9", b"PROXY TCP4 10.1.2.3 10.1.2.1 4000 587\r\n"),
        ("10.1.2.9", b"PROXY TCP6 ::ffff:10.1.2.3 ::1 4000 587\r\n"),
        ("10.1.2.9", SIGNATURE + b"\x21\x11\x00\x0c" + bytes([10, 1, 2, 3, 10, 1, 2, 1, 1, 1, 2, 75])),
        ("10.1.2.3", b""),  # not by way of the balancer
    ],
)
def test_an_address_from_a_balancer_can_be_trusted(host: str, header: bytes) -> None:
    _, heard = behind(World(), host, header)
    assert heard.startswith(b"220 ") and heard.endswith(b"250 2.1.0 Sender OK\r\n")


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("10.1.3.1", b"PROXY TCP4 10.1.2.3 10.1.2.1 4000 587\r\n"),  # from somebody who is not believed
        ("192.0.2.9", SIGNATURE + b"\x21\x11\x00\x0c" + bytes([10, 1, 2, 3, 10, 1, 2, 1, 1, 1, 2, 75])),
        ("10.1.2.9", b"PROXY TCP4 192.0.2.1 10.1.2.1 4000 587\r\n"),
        ("10.1.2.9", b"PROXY TCP4 192.0.2.1 10.1.2.1 4000 587\r\nPROXY TCP4 10.1.2.3 10.1.2.1 4000 587\r\n"),  # a second one
        ("10.1.2.9", b"PROXY TCP4 10.1.2.9 10.1.2.1 4000 587\r\n"),  # the balancer, whom the network has too
        ("10.1.2.9", b"PROXY UNKNOWN\r\n"),
        ("10.1.2.9", SIGNATURE + b"\x20\x00\x00\x00"),
        ("10.1.2.9", SIGNATURE + b"\x21\x31\x00\x02xx"),
        ("10.1.2.9", b"PROXY TCP4 127.0.0.1 127.0.0.1 4000 587\r\n"),  # the balancer's loopback is another machine
        ("10.1.2.9", b"PROXY TCP6 ::ffff:127.0.0.1 ::1 4000 587\r\n"),
        ("10.1.2.9", b"PROXY TCP6 ::1 ::1 4000 587\r\n"),
    ],
)
def test_other_addresses_are_not_trusted(host: str, header: bytes) -> None:
    world = World()
    world.relay.trusted_networks = TrustedNetworks.of({"10.1.2.0/24": str(KEY), "127.0.0.1": str(KEY), "::1": str(KEY)}, [BALANCER])
    _, heard = behind(world, host, header)
    assert b"2.1.0" not in heard and heard.endswith(b"530 5.7.0 Must issue a STARTTLS command first\r\n")


def test_an_invalid_proxy_header_is_disconnected() -> None:
    transport, heard = behind(World(), "10.1.2.9", b"PROXY TCP4 10.1.2.3,192.0.2.1 10.1.2.1 4000 587\r\n")
    assert transport.aborted and not heard
