"""Closing a connection on which nothing is expected any more."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from mailsvc.net.closing import SECONDS, close


def test_a_server_that_does_not_read_is_disconnected_by_force() -> None:
    clock, transport = Clock(), StringTransport()
    close(transport, clock, complete=True)
    assert transport.disconnecting and not transport.disconnected
    clock.advance(SECONDS)
    assert transport.disconnected
