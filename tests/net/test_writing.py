"""Bytes leave in their order, at once where the socket takes them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport

from mailsvc.net.writing import write

MANY = b"x" * 4_000_000  # more than sockets buffer


@attrs.define
class Reactor:
    """Which connections it was asked to watch."""

    writers: set[Any] = attrs.field(factory=set)

    def addWriter(self, writer: Any) -> None:
        self.writers.add(writer)

    def removeWriter(self, writer: Any) -> None:
        self.writers.discard(writer)


@attrs.define
class Ends:
    """A connection, and the socket of its peer."""

    connection: Any
    peer: socket.socket

    def received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if self.connection.reactor.writers:
                self.connection.doWrite()
            data += self.peer.recv(1 << 20)
        return data


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, Protocol(), Reactor())
    connection.connected = True
    yield Ends(connection, peer)
    ours.close()
    peer.close()


def test_what_fits_is_sent_at_once(ends: Ends) -> None:
    write(ends.connection, b"250 OK\r\n")
    assert ends.peer.recv(100) == b"250 OK\r\n" and not ends.connection.reactor.writers


def test_the_rest_follows_in_order(ends: Ends) -> None:
    write(ends.connection, MANY)
    write(ends.connection, b"after")
    assert ends.connection.reactor.writers
    assert ends.received(len(MANY) + 5) == MANY + b"after"


def test_buffered_data_is_not_overtaken(ends: Ends) -> None:
    ends.connection.write(b"first ")
    write(ends.connection, b"second")
    assert ends.received(12) == b"first second"


def test_an_error_is_left_to_the_reactor(ends: Ends) -> None:
    ends.connection.writeSomeData = lambda data: ConnectionLost("held back")
    write(ends.connection, b"data")
    assert isinstance(ends.connection.doWrite(), ConnectionLost)


def test_nothing_bypasses_tls(ends: Ends) -> None:
    ends.connection.TLS = True
    sent: list[bytes] = []
    ends.connection.write = sent.append
    write(ends.connection, b"secret")
    assert sent == [b"secret"]


def test_other_transports_write_as_usual() -> None:
    transport = StringTransport()
    write(transport, b"data")
    assert transport.value() == b"data"
