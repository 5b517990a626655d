"""Who is a neighbour, whose key that is, and that nobody becomes one by what they say. Dialogues: tests/conversations/relay."""

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
def test_whose_key_an_address_stands_for(address: str, key: UUID | None) -> None:
    networks = {"10.1.2.0/24": str(NEAR), "10.1.2.7": str(HOST), "2001:db8::/32": str(NEAR), "fe80::/10": str(NEAR)}
    balancers = [ip_network(text) for text in ("10.1.2.9", "2001:db8::9", "::ffff:10.1.2.11")]
    assert TrustedNetworks.of(networks, balancers).key_of(address) == key
    assert TrustedNetworks.of({}, balancers).key_of(address) is None


def neighbour(world: World, number: str = "587", host: str = "10.1.2.3") -> RelayClient:
    client = world.connect(number, host)
    client.command("EHLO me")
    return client


def send(client: RelayClient) -> str:
    return client.mail(ME + b"\r\nx\r\n")


def trace(world: World) -> str:
    """The protocol in the newest Received field."""
    return world.intake.messages[-1].partition(b" with ")[2].split()[0].decode()


def test_the_trace_says_that_nobody_authenticated() -> None:
    world = World()
    client = neighbour(world)
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


def test_a_key_that_is_revoked_in_the_middle_is_as_if_there_was_no_such_network() -> None:
    world = World()
    client = neighbour(world)
    assert send(client).startswith("250")
    callers, world.keys.callers = world.keys.callers, {}
    assert send(client) == "530 5.7.0 Authentication required"
    assert send(neighbour(world)) == "530 5.7.0 Must issue a STARTTLS command first"
    client.command("STARTTLS")
    client.command("EHLO me")
    assert send(client) == "530 5.7.0 Authentication required"
    world.keys.callers = {digest(OTHER): callers[digest(OTHER)]}
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")


def test_a_key_store_that_is_away_is_no_refusal() -> None:
    world = World()
    world.keys.error = Unavailable("away")
    client = neighbour(world)
    assert send(client) == "454 4.7.0 Temporary authentication failure"
    world.keys.error = None
    assert send(client).startswith("250")
    world.keys.error = Unavailable("away")
    assert send(client) == "451 4.3.0 Mail cannot be stored at the moment, try again later"


def test_a_neighbour_has_the_places_and_the_rate_of_the_key() -> None:
    world = World(rate=2)
    lines = [neighbour(world, host=f"10.1.2.{n}") for n in (1, 2, 3)]
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
    assert send(neighbour(world)).startswith("250")


def test_a_login_frees_the_place_of_the_network_and_needs_none_before_a_mail() -> None:
    world = World()
    full = [neighbour(world) for _ in range(2)]
    assert all(send(client).startswith("250") for client in full)
    client = neighbour(world, "465", "10.1.2.4")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    full[0].command("STARTTLS")
    full[0].command("EHLO me")
    assert full[0].login(OTHER).startswith("235")
    assert send(neighbour(world)).startswith("250")


def test_what_was_said_before_a_login_is_not_for_the_account_that_logged_in() -> None:
    world = World()
    world.keys.callers[digest(OTHER)] = Caller(UUID(int=8), UUID(int=3), "sending_access", None, None)
    client = neighbour(world, "465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.mail(ME + b"\r\nx\r\n", "secret@example.net").startswith("250")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(first, before), (second, after)] = world.sessions.entries
    assert (first, before.key_id, before.mails) == (ACCOUNT, KEY, 1) and "secret@" in (before.transcript or "")
    assert (second, after.key_id, after.mails) == (UUID(int=8), UUID(int=3), 1) and "secret@" not in (after.transcript or "")


def test_the_same_key_by_a_login_goes_on_in_the_same_receipt() -> None:
    world = World()
    client = neighbour(world)
    send(client)
    client.command("STARTTLS")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(account, receipt)] = world.sessions.entries
    assert (account, receipt.mails) == (ACCOUNT, 2)


def test_a_neighbour_that_only_looks_leaves_nothing_and_is_no_stranger() -> None:
    world = World(unauthenticated_bytes=100)
    client = neighbour(world)
    world.clock.advance(61)
    for _ in range(30):
        client.command("NOOP")
    assert not client.closed and len(world.relay.per_key) == 0
    client.command("QUIT")
    assert not world.sessions.entries
    stranger = world.connect("25", "10.1.2.3")  # where nobody has to log in
    world.clock.advance(61)
    assert stranger.closed


# Behind a load balancer


def behind(world: World, host: str, octets: bytes) -> tuple[Any, bytes]:
    """A connection from `host` to a port with PROXY, and what it hears when it says `octets` and then sends a mail in clear."""
    ports = Ports("mx.test", Limits(), object(), world.relay.open_session, world.clock, [BALANCER])
    [port] = ports.make({"587": "haproxy:tcp:587"})
    address, transport = IPv4Address("TCP", host, 999), Transport()
    transport.peerAddr = address  # type: ignore[assignment]
    transport.protocol = port.factory.buildProtocol(address)
    transport.protocol.makeConnection(transport)
    for octet in octets + b"EHLO me\r\nMAIL FROM:<me@example.com>\r\n":
        transport.protocol.dataReceived(bytes([octet]))
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
def test_who_is_named_by_a_balancer_is_a_neighbour(host: str, header: bytes) -> None:
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
        ("10.1.2.9", b"PROXY TCP4 127.0.0.1 127.0.0.1 4000 587\r\n"),  # its loopback is not ours
        ("10.1.2.9", b"PROXY TCP6 ::ffff:127.0.0.1 ::1 4000 587\r\n"),
        ("10.1.2.9", b"PROXY TCP6 ::1 ::1 4000 587\r\n"),
    ],
)
def test_nobody_else_is(host: str, header: bytes) -> None:
    world = World()
    world.relay.trusted_networks = TrustedNetworks.of({"10.1.2.0/24": str(KEY), "127.0.0.1": str(KEY), "::1": str(KEY)}, [BALANCER])
    _, heard = behind(world, host, header)
    assert b"2.1.0" not in heard and heard.endswith(b"530 5.7.0 Must issue a STARTTLS command first\r\n")


def test_a_balancer_that_names_nobody_properly_is_cut_off() -> None:
    transport, heard = behind(World(), "10.1.2.9", b"PROXY TCP4 10.1.2.3,192.0.2.1 10.1.2.1 4000 587\r\n")
    assert transport.aborted and not heard
