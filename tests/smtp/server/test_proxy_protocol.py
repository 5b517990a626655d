"""The PROXY header is believed from listed proxies only; the bytes of any other client are SMTP."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.proxy_protocol import SIGNATURE, BadHeader, ProxyHeader, ProxyProtocolFactory, read
from mailsvc.smtp.server.session import Listener, Session
from tests.smtp.harness import Recorder, Transport

V2 = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 7, 192, 0, 2, 8]) + b"\x30\x39\x00\x19"
V2_6 = SIGNATURE + b"\x21\x21\x00\x24" + b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01" + bytes(16) + b"\x30\x39\x00\x19"


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.8 12345 25\r\n", ("192.0.2.7", 12345)),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 12345 25\r\n", ("2001:db8::1", 12345)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ::2 1 2\r\n", None),
        (V2, ("192.0.2.7", 12345)),
        (V2_6, ("2001:db8::1", 12345)),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.8 12345 25\r\n", ("192.0.2.7", 12345)),
        (V2_6[:16] + bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 7]) + V2_6[32:], ("192.0.2.7", 12345)),
        (SIGNATURE + b"\x20\x00\x00\x00", None),
        (SIGNATURE + b"\x21\x31\x00\x02xx", None),
        (SIGNATURE + b"\x21\x11\x00\x0f" + V2[16:] + b"tlv", ("192.0.2.7", 12345)),
    ],
)
def test_headers_are_read_in_any_segments(data: bytes, source: tuple[str, int] | None) -> None:
    for cut in range(len(data)):
        assert read(data[:cut]) is None
    assert read(data + b"EHLO") == ProxyHeader(source, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"EHLO me\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 12345\r\n",
        b"PROXY TCP4 nowhere 192.0.2.8 12345 25\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 123456 25\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x11\x11\x00\x0c" + V2[16:],
        SIGNATURE + b"\x22\x11\x00\x0c" + V2[16:],
        SIGNATURE + b"\x21\x11\x00\x02xx",
    ],
)
def test_invalid_headers(data: bytes) -> None:
    with pytest.raises(BadHeader):
        read(data)


@given(st.binary(max_size=120))
@settings(max_examples=200)
def test_any_bytes_are_a_header_or_not(data: bytes) -> None:
    for start in (b"", b"PROXY TCP4 ", SIGNATURE):
        try:
            read(start + data)
        except BadHeader:
            continue


class Connection:
    """A connection from `host` to a port behind a load balancer at 192.0.2.1."""

    def __init__(self, host: str) -> None:
        self.clock, self.sessions = Clock(), list[Session]()

        def welcome(session: Session) -> Recorder:
            self.sessions.append(session)
            return Recorder(session)

        receivers = ServerFactory(Listener("mx.test"), welcome, self.clock)
        address = IPv6Address("TCP", host, 999) if ":" in host else IPv4Address("TCP", host, 999)
        self.transport: Any = Transport()
        self.transport.peerAddr = address
        protocol: Any = ProxyProtocolFactory(receivers, [ip_network("192.0.2.1/32")], self.clock).buildProtocol(address)
        self.transport.protocol = protocol
        protocol.makeConnection(self.transport)

    def say(self, data: bytes) -> bytes:
        for byte in data:
            self.transport.protocol.dataReceived(bytes([byte]))
        data: bytes = self.transport.value()
        return data


@pytest.mark.parametrize("host", ["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201"])
def test_a_listed_proxy_is_believed(host: str) -> None:
    """Also if the port listens on IPv6."""
    connection = Connection(host)
    assert connection.say(V2[:-1]) == b""
    assert connection.say(V2[-1:] + b"EHLO me\r\n").startswith(b"220 mx.test ESMTP\r\n250-")
    assert connection.sessions[0].peer.host == "192.0.2.7"
    connection.transport.protocol.connectionLost()


@pytest.mark.parametrize("host", ["192.0.2.9", "::ffff:192.0.2.9"])
def test_other_clients_are_not_believed(host: str) -> None:
    connection = Connection(host)
    assert b"500 5.5.1" in connection.say(b"PROXY TCP4 192.0.2.7 192.0.2.8 12345 25\r\n")
    assert connection.sessions[0].peer.host == "192.0.2.9"
    connection.transport.protocol.connectionLost()


@pytest.mark.parametrize("data", [b"EHLO me\r\n", b"PROXY TCP4 x\r\n"])
def test_a_listed_proxy_without_a_header_is_disconnected(data: bytes) -> None:
    connection = Connection("192.0.2.1")
    connection.say(data)
    assert connection.transport.aborted and not connection.sessions


def test_a_missing_header_times_out() -> None:
    connection = Connection("192.0.2.1")
    connection.say(b"PROXY ")
    connection.clock.advance(11)
    assert connection.transport.aborted
    assert isinstance(connection.transport, StringTransport)
