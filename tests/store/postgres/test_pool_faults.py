"""The pool under faults: it keeps reconnecting, leaves no dead descriptor behind, and reports problems."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from mailsvc.store.postgres import connection as link
from mailsvc.store.postgres import pool as pool_module
from mailsvc.store.postgres import targets, trial
from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.connection import Connection, Limits
from mailsvc.store.postgres.errors import OutOfResources, StoreError, Unavailable
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.prepared import Prepared
from tests.store.postgres.waiting import reactor, until

LARGE = "x" * 3_000_000
STORE = Prepared("store_large", ("text",), "SELECT length($1)")
FULL = """
CREATE TABLE room (t text);
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON room FOR EACH ROW EXECUTE FUNCTION full_disk()
"""


def closed_descriptors() -> list[int]:
    """Descriptors that the reactor watches although they are closed."""
    found = []
    for selectable in {*reactor().getReaders(), *reactor().getWriters()}:
        descriptor = selectable.fileno()
        try:
            os.fstat(descriptor)
        except OSError:
            found.append(descriptor)
    return found


@pytest.fixture
def kill_all(administer: Callable[..., None], database: str) -> Callable[[], None]:
    """Terminate all backends of the pool, and return when they have ended."""
    return lambda: administer(
        database,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'mailsvc tests' AND datname = current_database()",
    )


class Wire:
    """A proxy to the server that can be cut: both ends then find their connections dead without notice."""

    def __init__(self, database: str) -> None:
        given = parse_dsn(database)
        self._server = f"{given.pop('host')}/.s.PGSQL.{given.pop('port', 5432)}"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._frozen: set[socket.socket] = set()
        self.dsn = make_dsn(**given, host="127.0.0.1", port=self._listening.getsockname()[1], sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._ends += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def freeze(self) -> None:
        """Both ends of each connection wait for the other one from now on. New connections work."""
        self._frozen.update(self._ends)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one:
            while data := one.recv(65536):
                if one not in self._frozen:
                    other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(database: str) -> Iterator[Wire]:
    if not parse_dsn(database).get("host", "").startswith("/"):
        pytest.skip("The wire ends at a Unix socket of the server.")
    wire = Wire(database)
    yield wire
    wire.close()


@pytest_twisted.ensureDeferred
async def test_one_statement_without_an_answer_is_enough_to_leave_a_server_that_hangs(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (link, pool_module):
        monkeypatch.setattr(module, "GRACE", 0.1)
    pool = Pool(wire.dsn, reactor(), size=3, limits=Limits(statement=0.1))
    await pool.start()
    await until(lambda: pool.connections == 3)
    wire.freeze()
    before = set(pool._connections)
    await until(lambda: all(each.idle_for(0.2) for each in before))
    with pytest.raises(Unavailable):
        await pool.rows("SELECT 1")
    assert not before & pool._connections
    assert await pool.rows("SELECT 1") == [(1,)]
    await pool.stop()


@pytest.mark.parametrize("prepared", [False, True])
@pytest_twisted.ensureDeferred
async def test_connections_cut_under_large_statements_leave_no_descriptor_behind(wire: Wire, prepared: bool) -> None:
    """libpq notices while it sends, and closes its socket at once."""
    pool = Pool(wire.dsn, reactor(), 4)
    pool._backoff = Backoff(reactor(), 0.001, 0.01)
    await pool.start()
    small, large = ((STORE, ("",)), (STORE, (LARGE,))) if prepared else (("SELECT 1", ()), ("SELECT length(%s)", (LARGE,)))

    async def work(turn: int, transaction: Transaction) -> None:
        await transaction.rows(*small)
        if turn % 2:
            wire.cut()
        waiting = Deferred.fromCoroutine(transaction.rows(*large))
        for _ in range(turn // 2):
            await deferLater(reactor(), 0)
        wire.cut()
        await waiting

    for turn in range(12):
        await until(lambda: pool.connections == 4)
        with pytest.raises(Unavailable):
            await pool.transact(partial(work, turn))
        assert closed_descriptors() == []
    await until(lambda: pool.connections == 4)
    assert await pool.rows("SELECT 1") == [(1,)]
    await pool.stop()
    assert closed_descriptors() == []


@pytest.mark.parametrize("error", [OSError(2, "No such file or directory"), RuntimeError("a bug"), Unavailable("away")])
@pytest_twisted.ensureDeferred
async def test_refilling_continues_after_any_error(
    pool: Pool, kill_all: Callable[[], None], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await until(lambda: pool.connections == 4)
    pool._backoff = Backoff(reactor(), 0.001, 0.01)
    opened, failures = Connection.open, [error] * 10

    async def fails(*arguments: Any, **more: Any) -> Connection:
        if failures:
            raise failures.pop()
        return await opened(*arguments, **more)

    monkeypatch.setattr(Connection, "open", fails)
    with capturedLogs():
        kill_all()
        await until(lambda: not failures)
        await until(lambda: pool.connections == 4)
    assert (pool.problem, pool.shortage) == (None, None)
    assert await pool.rows("SELECT 1") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_stuck_attempt_is_reported_and_replaced(pool: Pool, kill_all: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ATTEMPT_TIMEOUT", 0.05)
    await until(lambda: pool.connections == 4)
    opened, never = Connection.open, Deferred[Connection]()

    async def hangs(*arguments: Any, **more: Any) -> Connection:
        monkeypatch.setattr(Connection, "open", opened)
        return await never

    monkeypatch.setattr(Connection, "open", hangs)
    kill_all()
    await until(lambda: pool.connections == 0)
    assert pool.problem == "there is no connection to it"
    with capturedLogs():
        await deferLater(reactor(), 0.06)
        pool._watch()
    await until(lambda: pool.connections == 4)
    assert pool.problem is None


@pytest_twisted.ensureDeferred
async def test_the_watchdog_restarts_refilling(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the loop that opens connections has ended."""
    monkeypatch.setattr(pool_module, "WATCH_INTERVAL", 0.01)
    pool = Pool(database, reactor(), 2)
    await pool.start()
    await until(lambda: pool.connections == 2)
    monkeypatch.setattr(Pool, "_lost", lambda pool, link: pool._connections.discard(link) or pool._idle.remove(link))
    for known in list(pool._connections):
        known.abandon()
    await until(lambda: pool.connections == 2)
    await pool.stop()
    assert not pool._timers


@pytest_twisted.ensureDeferred
async def test_notifications_reconnect_after_any_error(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notifications = Notifications(database, reactor())
    await notifications.start()
    opened, failures = Connection.open, [OSError(9, "Bad file descriptor"), RuntimeError("a bug")]

    async def fails(*arguments: Any, **more: Any) -> Connection:
        if failures:
            raise failures.pop()
        return await opened(*arguments, **more)

    monkeypatch.setattr(Connection, "open", fails)
    assert notifications._connection is not None
    notifications._connection.abandon()
    await until(lambda: notifications.connected)
    assert failures == []
    await notifications.stop()


@pytest_twisted.ensureDeferred
async def test_a_full_disk_is_reported_until_a_write_succeeds(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PROBE_INTERVAL", 0.01)
    monkeypatch.setattr(trial, "WRITE", "INSERT INTO room VALUES ('x')")
    await pool.rows(FULL)
    assert pool.problem is None
    with capturedLogs():
        with pytest.raises(OutOfResources) as raised:
            await pool.run("INSERT INTO room VALUES ('mail')")
        assert (raised.value.sqlstate, raised.value.full) == ("53100", True)
        assert pool.problem == "its disk is full"
        assert await pool.rows("SELECT count(*) FROM room") == [(0,)]  # reading goes on, which proves nothing
        await deferLater(reactor(), 0.05)
        assert pool.problem == "its disk is full"
        await pool.run("DROP TRIGGER full_disk ON room")
        await until(lambda: pool.problem is None)
    assert await pool.rows("SELECT count(*) FROM room") == [(0,)]  # of the probes nothing is left


@pytest_twisted.ensureDeferred
async def test_the_probe_needs_space_and_leaves_nothing(pool: Pool) -> None:
    async def probed(transaction: Transaction) -> int:
        await transaction.run(trial.WRITE)
        [(size,)] = await transaction.rows("SELECT pg_relation_size('mailsvc_write_probe')")
        return int(size)

    assert await pool.transact(probed) >= 32 * 8192
    await pool.run("DROP TABLE mailsvc_write_probe")
    await pool._probe()
    assert await pool.rows("SELECT to_regclass('mailsvc_write_probe')") == [(None,)]


@pytest_twisted.ensureDeferred
async def test_while_commits_wait_for_a_standby_reads_succeed_and_writes_fail_at_once(pool: Pool) -> None:
    async def write(transaction: Transaction) -> None:
        await transaction.run(store)
        assert await transaction.rows("SELECT count(*) FROM noted") == [(1,)]

    async def read(transaction: Transaction) -> list[Any]:
        return await transaction.rows("SELECT count(*) FROM noted")

    await until(lambda: pool.connections == pool.size)
    store = "INSERT INTO noted VALUES (1)"
    await pool.run("CREATE TABLE noted (n int)")
    pool.commits_wait_until = reactor().seconds() + 60
    for attempt in (pool.transact(write), pool.run(store), pool.rows(Prepared("note", (), store))):
        with pytest.raises(Unavailable) as raised:
            await attempt
        assert (raised.value.reason, raised.value.unknown) == (trial.WAITING, False)
    assert await pool.transact(read) == await pool.rows("SELECT count(*) FROM noted") == [(0,)]
    assert pool.connections == pool.size, "none was closed"
    pool.commits_wait_until = 0.0
    assert await pool.run(store) == 1


@pytest.mark.parametrize(
    ("state", "what"),
    [("53100", "its disk is full"), ("53200", "it is out of memory"), ("53400", "it is out of a resource"),
     ("58030", "its system reports an error")],
)  # fmt: skip
@pytest_twisted.ensureDeferred
async def test_sqlstate_classes_53_and_58_are_out_of_resources(pool: Pool, state: str, what: str) -> None:
    with capturedLogs(), pytest.raises(OutOfResources):
        await pool.rows(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
    assert pool.problem == what


@pytest_twisted.ensureDeferred
async def test_a_server_that_no_longer_accepts_writes_is_dropped(pool: Pool) -> None:
    with pytest.raises(Unavailable, match="read-only"):
        await pool.rows("SET default_transaction_read_only = on; BEGIN READ ONLY; CREATE TABLE kept (n integer)")
    await until(lambda: pool.connections == 4)
    await pool.rows("CREATE TABLE kept (n integer)")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never replies."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest_twisted.async_yield_fixture
async def several(database: str, silent: int) -> AsyncIterator[Pool]:
    """A pool whose first host is silent."""
    given = parse_dsn(database)
    hosts, ports = f"127.0.0.1,{given.pop('host')}", f"{silent},{given.pop('port', 5432)}"
    dsn = make_dsn(**given, host=hosts, port=ports, target_session_attrs="read-write", connect_timeout=2)
    pool = Pool(dsn, reactor(), 3)
    await pool.start()
    yield pool
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_a_silent_host_does_not_block_the_next_one(several: Pool) -> None:
    assert await several.rows("SELECT 1") == [(1,)]
    began = reactor().seconds()
    await until(lambda: several.connections == 3)
    assert reactor().seconds() - began < 2.0  # the host that answered is tried first from then on


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://u@10.0.0.1:1,10.0.0.2:2/d", ["10.0.0.1 port 1", "10.0.0.2 port 2"]),
        ("host=10.0.0.1,10.0.0.2 port=6432", ["10.0.0.1 port 6432", "10.0.0.2 port 6432"]),
        ("host=db hostaddr=10.0.0.1", ["10.0.0.1 port 5432"]),
        ("host=/run/postgresql", ["/run/postgresql port 5432"]),
        ("dbname=x", ["local port 5432"]),
        ("host=name.invalid,10.0.0.2", ["10.0.0.2 port 5432"]),
    ],
)
@pytest_twisted.ensureDeferred
async def test_each_host_is_a_target(dsn: str, expected: list[str]) -> None:
    assert [target.where for target in await targets.targets(reactor(), dsn)] == expected


@pytest_twisted.ensureDeferred
async def test_the_port_can_be_that_of_a_service_file() -> None:
    [target] = await targets.targets(reactor(), "service=mail")
    assert target.given == {"service": "mail"}


@pytest_twisted.ensureDeferred
async def test_the_error_names_the_problem_of_each_host(silent: int) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        refusing = nobody.getsockname()[1]
        with pytest.raises(StoreError) as raised:
            await Connection.open(
                reactor(), f"host=127.0.0.1,127.0.0.1 port={silent},{refusing} connect_timeout=2", "tests", lambda link: None
            )
    assert f"127.0.0.1 port {silent}: The database did not answer within 2 s." in str(raised.value)
    assert f"127.0.0.1 port {refusing}: " in str(raised.value)


def test_migrations_give_up_a_silent_server_and_use_the_next(database: str, monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    monkeypatch.setattr(targets, "CONNECT_SECONDS", 2.0)
    known = parse_dsn(database)
    both = make_dsn(database, host=f"127.0.0.1,{known['host']}", port=f"{silent},{known.get('port', 5432)}")
    assert ThreadPoolExecutor(1).submit(migrate, both).result(30) == []


def test_the_dsn_can_say_how_long_a_server_is_waited_for() -> None:
    assert parse_dsn(targets.bounded("postgresql://one,two/mail?connect_timeout=3"))["connect_timeout"] == "3"


@pytest_twisted.ensureDeferred
async def test_a_shutdown_without_a_database_is_short(database: str, monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    monkeypatch.setattr(pool_module, "SHUTDOWN_TIMEOUT", 0.05)
    pool = Pool(database, reactor(), 1, timeout=60.0)
    await pool.start()
    pool.dsn = f"host=127.0.0.1 port={silent}"
    for known in list(pool._connections):
        known.abandon()
    pool.shutting_down()
    began = reactor().seconds()
    with pytest.raises(Unavailable):
        await pool.rows("SELECT 1")
    with capturedLogs():
        await pool.stop()
    assert reactor().seconds() - began < link.GRACE
