"""A message leaves in turns of the reactor that are short, however fast the server reads."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Connection

from mailsvc.smtp.client.dot_stuffing import SLICE, BdatCoding
from mailsvc.smtp.client.message_writer import AT_ONCE, MessageWriter
from tests.net.test_writing import Reactor


class Fast(Connection):
    """Whatever is written is taken at once."""

    taken = b""

    def writeSomeData(self, data: Any) -> int:
        self.taken += bytes(data)
        return len(data)


def begun(message: bytes) -> Any:
    """The connection to which the message is being written."""
    ours, _ = socket.socketpair()
    connection: Any = Fast(ours, Protocol(), Reactor())
    connection.connected = True
    pieces = [message[at : at + 300_000] for at in range(0, len(message), 300_000)]
    MessageWriter(connection, b"BDAT\r\n", pieces, BdatCoding(len(message)), lambda: True, lambda size: None, failed).start()
    return connection


def failed(error: Exception) -> None:
    raise error


def test_a_turn_is_short_even_if_the_server_takes_everything() -> None:
    message = (b"x" * 998 + b"\r\n") * 9000
    connection, turns = begun(message), 1
    assert AT_ONCE - 2 * SLICE <= len(connection.taken) <= AT_ONCE
    while connection.reactor.writers:
        before = len(connection.taken)
        connection.doWrite()
        assert len(connection.taken) - before <= AT_ONCE + 4 * SLICE
        turns += 1
    assert connection.taken == b"BDAT\r\n" + message
    assert turns <= 2 + len(message) // AT_ONCE
    connection.socket.close()
