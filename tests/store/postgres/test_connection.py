"""A connection whose socket can be read and written in the same turn of the reactor, as under load."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.store.postgres import connection as link
from mailsvc.store.postgres.cells import Address
from mailsvc.store.postgres.connection import Connection
from mailsvc.store.postgres.targets import Target

DEADLINE = 5.0  # seconds
LARGE = "x" * 3_000_000  # more than the socket takes at once
SLOW = "SELECT 1 FROM pg_sleep(0.05)"  # not answered before the reactor watches the socket


def reactor() -> Any:
    from twisted.internet import reactor

    return reactor


@pytest_twisted.async_yield_fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(reactor(), database, "tests", lambda _: None)
    yield connection
    connection.abandon()


def answered(connection: Connection) -> None:
    """Wait for the server's answer while the reactor stands still."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    assert poll.poll(DEADLINE * 1000)


@pytest_twisted.ensureDeferred
async def test_a_statement_gets_its_result_when_the_socket_can_be_written_as_well(connection: Connection) -> None:
    running = Deferred.fromCoroutine(connection.execute(SLOW))
    answered(connection)
    connection.doWrite()  # as the reactor does if the exchange before wanted to write
    result = await running.addTimeout(DEADLINE, reactor())
    assert result.rows == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_large_statement_is_sent_when_the_exchange_before_it_wanted_to_write(connection: Connection) -> None:
    running = Deferred.fromCoroutine(connection.execute("SELECT length(%s)", (LARGE,)))
    connection.doWrite()
    result = await running.addTimeout(DEADLINE, reactor())
    assert result.rows == [(len(LARGE),)]


@pytest_twisted.ensureDeferred
async def test_the_node_that_another_one_names_is_tried_before_a_former_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby took over, and the former node of the cell is up again. It still says that it holds the cell."""
    tried: list[str] = []

    async def answer(cls: object, reactor: object, target: Target, *_: object) -> Any:
        tried.append(target.where)
        if "7001" in target.where:
            raise link._Elsewhere(Address("127.0.0.1", 7003))
        return target.where

    monkeypatch.setattr(Connection, "_open", classmethod(answer))
    monkeypatch.setattr(Target, "remember", lambda _: None)
    dsn = "host=127.0.0.1,127.0.0.1 port=7001,7002 dbname=none"
    found: Any = await Connection.open(reactor(), dsn, "test", lambda _: None)
    assert found == "the node 127.0.0.1 port 7003"
    assert len(tried) == 2
