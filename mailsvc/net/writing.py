"""Writing to a connection: what its socket takes is sent at once, without waiting for the reactor to report that it is writable.

SMTP replies and commands and short HTTP responses fit into the socket's buffer. For each, this saves two system calls and an event of the
reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection


def write(transport: Any, data: bytes) -> None:
    """Like `transport.write`. What cannot be sent now is buffered by the transport, which also handles errors.

    Data that waits in the transport is never overtaken. Under TLS, this is `transport.write`.
    """
    if isinstance(transport, Connection) and _is_free(transport):
        sent = transport.writeSomeData(data)
        if sent == len(data):
            return
        if isinstance(sent, int) and sent > 0:
            data = data[sent:]
    transport.write(data)


def _is_free(connection: Any) -> bool:
    """Whether it is unencrypted and has nothing to send."""
    return connection.connected and not (connection.TLS or connection.disconnecting or connection.dataBuffer or connection._tempDataBuffer)
