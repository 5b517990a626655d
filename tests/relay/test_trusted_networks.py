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
from mailsvc.store.people.api_keys import Caller, Moved, digest
from mailsvc.store.postgres.errors import Unavailable
from tests.relay.harness import ACCOUNT, BALANCER, KEY, ME, OTHER, TOKEN, RelayClient, RelayRig
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


def trusted(rig: RelayRig, number: str = "587", host: str = "10.1.2.3") -> RelayClient:
    client = rig.connect(number, host)
    client.command("EHLO me")
    return client


def send(client: RelayClient) -> str:
    return client.mail(ME + b"\r\nx\r\n")


def trace(rig: RelayRig) -> str:
    """The protocol in the newest Received field."""
    return rig.intake.messages[-1].partition(b" with ")[2].split()[0].decode()


def test_received_does_not_claim_authentication() -> None:
    rig = RelayRig()
    client = trusted(rig)
    assert send(client).startswith("250 2.0.0 Ok: queued as ") and trace(rig) == "ESMTP"
    assert client.mail(ME + b"\r\nx\r\n", parameters=" SMTPUTF8").startswith("250") and trace(rig) == "UTF8SMTP"
    client.command("STARTTLS")
    client.command("EHLO me")
    assert send(client).startswith("250") and trace(rig) == "ESMTPS"
    client.login(OTHER)
    assert send(client).startswith("250") and trace(rig) == "ESMTPSA"
    client.command("HELO me")
    assert send(client).startswith("250") and trace(rig) == "SMTP"
    assert [caller.key_id for caller in rig.intake.callers] == [KEY] * 3 + [UUID(int=3)] * 2


def test_a_revoked_key_ends_the_trust_in_open_sessions() -> None:
    rig = RelayRig()
    client = trusted(rig)
    assert send(client).startswith("250")
    callers, rig.keys.callers = rig.keys.callers, {}
    assert send(client) == "530 5.7.0 Authentication required"
    assert send(trusted(rig)) == "530 5.7.0 Must issue a STARTTLS command first"
    client.command("STARTTLS")
    client.command("EHLO me")
    assert send(client) == "530 5.7.0 Authentication required"
    rig.keys.callers = {digest(OTHER): callers[digest(OTHER)]}
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")


def test_an_unavailable_key_store_is_a_temporary_failure() -> None:
    rig = RelayRig()
    rig.keys.error = Unavailable("away")
    client = trusted(rig)
    assert send(client) == "454 4.7.0 Temporary authentication failure"
    rig.keys.error = None
    assert send(client).startswith("250")
    rig.keys.error = Unavailable("away")
    assert send(client) == "451 4.3.0 Mail cannot be stored at the moment, try again later"


@pytest.mark.parametrize(
    ("moved", "new", "open_"),
    [
        (Moved("eu_1"), "451 4.3.0 The account for your network has moved", "421 4.3.2 The account has moved to another cell"),
        (Moved(None), "454 4.7.0 Temporary authentication failure", "451 4.3.0 Mail cannot be stored"),
    ],
)
def test_mail_for_an_account_that_has_moved_is_refused_temporarily(moved: Moved, new: str, open_: str) -> None:
    rig = RelayRig()
    client = trusted(rig)
    assert send(client).startswith("250")
    rig.keys.callers, rig.keys.elsewhere = {}, {KEY: moved}
    assert send(trusted(rig)).startswith(new)
    assert send(client).startswith(open_)


def test_trusted_clients_share_the_connections_and_rate_of_the_key() -> None:
    rig = RelayRig(rate=2)
    lines = [trusted(rig, host=f"10.1.2.{n}") for n in (1, 2, 3)]
    assert [send(client)[:9] for client in lines] == ["250 2.0.0", "250 2.0.0", "421 4.7.0"] and lines[2].closed
    assert send(lines[0]).startswith("451 4.7.1")
    elsewhere = rig.connect("465")
    elsewhere.client.protocol.session.tls = {}
    elsewhere.command("EHLO me")
    assert elsewhere.login(TOKEN).startswith("421 4.7.0 Too many connections with this API key")
    lines[0].command("STARTTLS")  # keeps its place, and takes no second one
    lines[0].command("EHLO me")
    rig.clock.advance(1)
    assert send(lines[0]).startswith("250")
    for client in lines[:2]:
        client.disconnect()
    assert len(rig.relay.per_key) == len(rig.relay.per_address) == 0
    assert send(trusted(rig)).startswith("250")


def test_a_login_releases_the_connection_of_the_networks_key() -> None:
    rig = RelayRig()
    full = [trusted(rig) for _ in range(2)]
    assert all(send(client).startswith("250") for client in full)
    client = trusted(rig, "465", "10.1.2.4")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    full[0].command("STARTTLS")
    full[0].command("EHLO me")
    assert full[0].login(OTHER).startswith("235")
    assert send(trusted(rig)).startswith("250")


def test_the_session_log_is_split_at_a_login() -> None:
    rig = RelayRig()
    rig.keys.callers[digest(OTHER)] = Caller(UUID(int=8), UUID(int=3), "sending_access", None, None)
    client = trusted(rig, "465")
    client.client.protocol.session.tls = {}
    client.command("EHLO me")
    assert client.mail(ME + b"\r\nx\r\n", "secret@example.net").startswith("250")
    assert client.login(OTHER).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(first, before), (second, after)] = rig.sessions.entries
    assert (first, before.key_id, before.mails) == (ACCOUNT, KEY, 1) and "secret@" in (before.transcript or "")
    assert (second, after.key_id, after.mails) == (UUID(int=8), UUID(int=3), 1) and "secret@" not in (after.transcript or "")


def test_a_login_with_the_same_key_continues_the_session_log() -> None:
    rig = RelayRig()
    client = trusted(rig)
    send(client)
    client.command("STARTTLS")
    client.command("EHLO me")
    assert client.login(TOKEN).startswith("235") and send(client).startswith("250")
    client.command("QUIT")
    [(account, receipt)] = rig.sessions.entries
    assert (account, receipt.mails) == (ACCOUNT, 2)


def test_a_trusted_client_without_mail_leaves_no_log_and_has_no_limits() -> None:
    rig = RelayRig(unauthenticated_bytes=100)
    client = trusted(rig)
    rig.clock.advance(61)
    for _ in range(30):
        client.command("NOOP")
    assert not client.closed and len(rig.relay.per_key) == 0
    client.command("QUIT")
    assert not rig.sessions.entries
    other = rig.connect("25", "10.1.2.3")  # where no login is required
    rig.clock.advance(61)
    assert other.closed


# Behind a load balancer


def behind(rig: RelayRig, host: str, data: bytes) -> tuple[Any, bytes]:
    """Connect from `host` to a port with PROXY, send `data` and a mail in clear text, and return the replies."""
    ports = Ports("mx.test", Limits(), object(), rig.relay.open_session, rig.clock, [BALANCER])
    [port] = ports.make({"587": "haproxy:tcp:587"})
    address, transport = IPv4Address("TCP", host, 999), Transport()
    transport.peerAddr = address  # type: ignore[assignment]
    transport.protocol = port.factory.buildProtocol(address)
    transport.protocol.makeConnection(transport)
    for byte in data + b"EHLO me\r\nMAIL FROM:<me@example.com>\r\n":
        transport.protocol.dataReceived(bytes([byte]))
    received: bytes = transport.value()
    transport.protocol.connectionLost()
    return transport, received


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
    _, received = behind(RelayRig(), host, header)
    assert received.startswith(b"220 ") and received.endswith(b"250 2.1.0 Sender OK\r\n")


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
    rig = RelayRig()
    rig.relay.trusted_networks = TrustedNetworks.of({"10.1.2.0/24": str(KEY), "127.0.0.1": str(KEY), "::1": str(KEY)}, [BALANCER])
    _, received = behind(rig, host, header)
    assert b"2.1.0" not in received and received.endswith(b"530 5.7.0 Must issue a STARTTLS command first\r\n")


def test_an_invalid_proxy_header_is_disconnected() -> None:
    transport, received = behind(RelayRig(), "10.1.2.9", b"PROXY TCP4 10.1.2.3,192.0.2.1 10.1.2.1 4000 587\r\n")
    assert transport.aborted and not received
