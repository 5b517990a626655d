"""Whether a process can connect to the coordinator: a server that answers, one that refuses, one that hangs, and the node of the cell."""

from __future__ import annotations

import socket
from typing import Any

import attrs
import pytest_twisted
from psycopg2.extensions import parse_dsn
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.store.cells.coordinator import CONNECT_SECONDS, unreachable
from mailsvc.store.postgres.cells import PLACE, directly
from mailsvc.store.postgres.connection import Connection


class Reactor:
    """The real one, with a clock of the test's for timers."""

    def __init__(self) -> None:
        from twisted.internet import reactor

        self.clock, self._real = Clock(), reactor
        self.seconds = self.clock.seconds

    def callLater(self, seconds: float, *call: Any) -> Any:
        return (self.clock if seconds else self._real).callLater(seconds, *call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def connections(self) -> list[Connection]:
        """Those that the real one watches."""
        return [each for each in {*self._real.getReaders(), *self._real.getWriters()} if isinstance(each, Connection)]


@attrs.define(eq=False)
class CellPool:
    """A pool on a node of a cluster, which knows where the coordinator is."""

    dsn: str
    host: str
    port: int
    coordinating: bool = False
    reactor: Reactor = attrs.field(factory=Reactor)

    @classmethod
    def of(cls, database: str, host: str | None = None, port: int | None = None, **given: Any) -> CellPool:
        parsed = parse_dsn(database)
        return cls(directly(database, "red"), host or parsed.get("host", ""), port or int(parsed.get("port", 5432)), **given)

    async def rows(self, sql: str, parameters: tuple[str]) -> list[tuple[Any, ...]]:
        assert (sql, parameters) == (PLACE, ("red",))
        return [("node.invalid", 5432, True, self.host, self.port, self.coordinating)]


@pytest_twisted.ensureDeferred
async def test_a_connection_is_opened_and_closed(database: str) -> None:
    pool: Any = CellPool.of(database)
    assert await unreachable(pool) is None
    assert pool.reactor.connections() == [] and pool.reactor.clock.getDelayedCalls() == []


@pytest_twisted.ensureDeferred
async def test_a_server_that_refuses_is_named(database: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        pool: Any = CellPool.of(database, "127.0.0.1", port)
        assert str(await unreachable(pool)).startswith(f"127.0.0.1:{port}: ")
    assert pool.reactor.connections() == []


def test_a_server_that_never_answers_is_waited_for_for_5_seconds(database: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        pool: Any = CellPool.of(database, "127.0.0.1", port)
        found: list[str | None] = []
        Deferred.fromCoroutine(unreachable(pool)).addCallback(found.append)
        pool.reactor.clock.advance(CONNECT_SECONDS - 0.1)
        assert found == []
        assert len(pool.reactor.connections()) == 1
        pool.reactor.clock.advance(0.1)
        assert found == [f"127.0.0.1:{port}: The database did not answer within 5 s"]
    assert pool.reactor.connections() == []


@pytest_twisted.ensureDeferred
async def test_no_connection_is_opened_if_the_cell_is_on_the_coordinator() -> None:
    pool: Any = CellPool.of("dbname=mail", "db.invalid", 5432, coordinating=True)
    assert await unreachable(pool) is None
