"""Disconnects all clients after each test, and provides a server and a certificate for tests over real connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_twisted

from tests.smtp.harness import Client
from tests.smtp.listener import Certificate, Listener


@pytest.fixture(autouse=True)
def _disconnect() -> Iterator[None]:
    yield
    while Client.all:
        Client.all.pop().disconnect()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def reactor():
    from twisted.internet import reactor

    return reactor


@pytest.fixture
def listener(reactor) -> Iterator[Listener]:
    listener = Listener()
    listener.open(reactor)
    yield listener
    for server in listener.servers:
        server.transport.abortConnection()
    pytest_twisted.blockon(listener.port.stopListening())
