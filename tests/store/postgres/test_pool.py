"""The pool: transactions run to their end, connections are usable, and waiting is bounded."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import deferLater

from mailsvc.store.mail.spooled import PIECE
from mailsvc.store.postgres import connection as link
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.connection import Limits
from mailsvc.store.postgres.errors import Conflict, Contention, DataRejected, StatementFailed, StoreError, TimedOut, Unavailable
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.targets import Target
from tests.store.postgres.waiting import reactor, until


@pytest_twisted.async_yield_fixture
async def notes(pool: Pool) -> AsyncIterator[Pool]:
    """The pool, with a small table to write to."""
    await pool.rows(
        "CREATE TABLE notes (n integer PRIMARY KEY CHECK (n < 1000), parent integer REFERENCES notes, t text NOT NULL DEFAULT '')"
    )
    yield pool


async def written(pool: Pool) -> list[int]:
    return [n for (n,) in await pool.rows("SELECT n FROM notes ORDER BY n")]


@pytest.fixture
def kill_all(administer: Callable[..., None], database: str) -> Callable[[], None]:
    """Terminate all backends of the pool."""
    return lambda: administer(
        database,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'mailsvc tests' AND datname = current_database()",
    )


@pytest_twisted.ensureDeferred
async def test_values_round_trip(pool: Pool) -> None:
    one, now = uuid4(), datetime.now(UTC)
    sql = "SELECT %s, %s::uuid[], %s, %s::bytea[], %s, %s, %s, %s, %s::uuid, '100%%'"
    values = (one, [one], b"\x00\xff'", [b"", b"\\x"], {"a": ["ü"]}, json([1, None]), now, "it's 100%", None)
    assert await pool.rows(sql, values) == [
        (one, [one], b"\x00\xff'", [b"", b"\\x"], {"a": ["ü"]}, [1, None], now, "it's 100%", None, "100%")
    ]
    assert await pool.rows("SELECT '{}'::uuid[], '100%', 'infinity'::timestamptz > now()") == [([], "100%", True)]


@pytest_twisted.ensureDeferred
async def test_sessions_have_durable_settings_and_limits(pool: Pool) -> None:
    sql = "SELECT " + ", ".join(f"current_setting('{name}')" for name in ("synchronous_commit", "statement_timeout", "TimeZone", "jit"))
    assert await pool.rows(sql) == [("on", "30s", "UTC", "off")]


@pytest_twisted.ensureDeferred
async def test_no_default_makes_sessions_less_durable_or_changes_what_statements_mean(database: str) -> None:
    others = {"synchronous_commit": "off", "default_transaction_isolation": "serializable", "standard_conforming_strings": "off"}
    others |= {"array_nulls": "off", "idle_session_timeout": "60000", "extra_float_digits": "-10"}
    pool = Pool(f"{database} options='{' '.join(f'-c {name}={value}' for name, value in others.items())}'", reactor(), 1)
    await pool.start()
    sql = r"SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation'), length('\x')"
    assert await pool.rows(sql) == [("on", "read committed", 2)]
    assert await pool.rows("SELECT %s::integer[], %s::text[]", ([None], [None])) == [([None], [None])]
    assert await pool.rows("SELECT current_setting('idle_session_timeout'), 1796000000.25::float8") == [("0", 1796000000.25)]
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_the_database_must_have_unicode(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_VERIFICATION", link._VERIFICATION.replace("current_setting('server_encoding')", "'LATIN1'"))
    with pytest.raises(StatementFailed, match="UTF8"):
        await Pool(database, reactor(), 1).start()


@pytest_twisted.ensureDeferred
async def test_a_pooler_that_drops_the_options_changes_no_session(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = link._arguments
    monkeypatch.setattr(link, "_arguments", lambda *given: {name: value for name, value in complete(*given).items() if name != "options"})
    monkeypatch.setattr(link, "_VERIFICATION", link._VERIFICATION.replace("pg_backend_pid()", "-pg_backend_pid()"))  # as with PgBouncer
    pool = Pool(database, reactor(), 2)
    await pool.start()
    names = ("statement_timeout", "jit", "default_transaction_isolation")
    sql = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    assert await pool.rows(sql) == [("30s", "off", "read committed")]
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_a_pooler_must_give_each_connection_its_own_server(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_VERIFICATION", link._VERIFICATION.replace("pg_backend_pid()", "-1"))
    pool = Pool(database, reactor(), 1)
    with pytest.raises(StatementFailed, match="pool_mode = session"):
        await pool.start()
    assert pool.connections == 0


def test_a_pooler_that_refuses_the_options_is_named() -> None:
    refused = psycopg2.OperationalError("FATAL:  unsupported startup parameter: options")
    assert "PgBouncer" in str(link._not_open(refused, Target("", "", {})))


@pytest_twisted.ensureDeferred
async def test_a_transaction_is_committed(notes: Pool) -> None:
    async def work(transaction: Transaction) -> str:
        assert await transaction.run("INSERT INTO notes VALUES (1), (2)") == 2
        await deferLater(reactor(), 0)
        assert await transaction.rows("SELECT n FROM notes ORDER BY n") == [(1,), (2,)]
        return "done"

    before = notes.statements, notes.commits
    assert await notes.transact(work) == "done"
    assert (notes.statements - before[0], notes.commits - before[1]) == (3, 1)  # BEGIN costs no round trip
    assert await written(notes) == [1, 2]


@pytest_twisted.ensureDeferred
async def test_an_exception_rolls_back_and_is_raised(notes: Pool) -> None:
    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        raise LookupError("no")

    with pytest.raises(LookupError):
        await notes.transact(work)
    assert await written(notes) == []


@pytest_twisted.ensureDeferred
async def test_a_caught_error_still_prevents_the_commit(notes: Pool) -> None:
    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        with pytest.raises(Conflict):
            await transaction.run("INSERT INTO notes VALUES (1)")

    with pytest.raises(StatementFailed, match="rolled back"):
        await notes.transact(work)
    assert await written(notes) == []


@pytest_twisted.ensureDeferred
async def test_a_transaction_cannot_be_used_after_its_end_or_concurrently(notes: Pool) -> None:
    kept = []

    async def work(transaction: Transaction) -> None:
        kept.append(transaction)
        first = Deferred.fromCoroutine(transaction.rows("SELECT 1"))
        with pytest.raises(RuntimeError, match="one statement at a time"):
            await transaction.rows("SELECT 2")
        await first

    await notes.transact(work)
    with pytest.raises(RuntimeError, match="has ended"):
        await kept[0].rows("SELECT 1")


@pytest_twisted.ensureDeferred
async def test_several_statements_in_one_round_trip_succeed_or_fail_together(notes: Pool) -> None:
    assert await notes.rows("INSERT INTO notes VALUES (1); INSERT INTO notes VALUES (2); SELECT count(*) FROM notes") == [(2,)]
    with pytest.raises(Conflict):
        await notes.rows("INSERT INTO notes VALUES (3); INSERT INTO notes VALUES (1)")
    assert await written(notes) == [1, 2]


@pytest.mark.parametrize(
    ("sql", "params", "error"),
    [
        ("INSERT INTO notes VALUES (1), (1)", (), Conflict("notes_pkey", "notes", "23505")),
        ("INSERT INTO notes VALUES (1, 7)", (), Conflict("notes_parent_fkey", "notes", "23503")),
        ("INSERT INTO notes VALUES (1, null, null)", (), DataRejected("23502", None, "notes", "t")),
        ("INSERT INTO notes VALUES (1000)", (), DataRejected("23514", "notes_n_check", "notes")),
        ("INSERT INTO notes VALUES (99999999999)", (), DataRejected("22003")),
        ("SELECT %s", ("secret\0",), DataRejected("22021")),
        ("SELECT %s", ("secret\ud800",), DataRejected("22021")),
        ("SELECT %s::jsonb", ({"secret": "\0"},), DataRejected("22P05")),
        ("SELECT %s", ({"secret": "\ud800"},), DataRejected("22021")),
        ("SELECT %s::uuid", ("secret",), DataRejected("22P02")),
        ("SELECT secrets FROM notes", (), StatementFailed("42703", 'column "secrets" does not exist')),
    ],
)
@pytest_twisted.ensureDeferred
async def test_errors_have_data_but_no_values(notes: Pool, sql: str, params: tuple[object, ...], error: StoreError) -> None:
    for run in (notes.rows(sql, params), notes.transact(lambda transaction: transaction.rows(sql, params))):
        with pytest.raises(type(error)) as raised:
            await run
        assert str(raised.value) == str(error)
        assert "secret" not in str(raised.value).replace("secrets", "")
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__
    await until(lambda: notes.connections == 4)
    assert notes.busy == 0


@pytest_twisted.ensureDeferred
async def test_a_connection_in_a_transaction_is_not_reused(notes: Pool) -> None:
    for _ in range(4):
        await notes.rows("BEGIN; INSERT INTO notes VALUES (1)")
    assert await written(notes) == []


@pytest_twisted.ensureDeferred
async def test_cancelling_the_caller_does_not_cancel_the_transaction(notes: Pool) -> None:
    entered, go_on, over = Deferred[None](), Deferred[None](), Deferred[None]()

    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        entered.callback(None)
        await go_on
        await transaction.run("INSERT INTO notes VALUES (2)")
        over.callback(None)

    async def request() -> None:
        await notes.transact(work)

    waiting = Deferred.fromCoroutine(request())
    await entered
    waiting.cancel()
    with pytest.raises(CancelledError):
        await waiting
    go_on.callback(None)
    await over
    await until(lambda: notes.busy == 0)
    assert await written(notes) == [1, 2]


@pytest.mark.parametrize("turns", range(6))
@pytest_twisted.ensureDeferred
async def test_cancelling_at_any_moment_leaves_every_connection_usable(notes: Pool, turns: int) -> None:
    """Cancelled while a statement is under way, and after each further turn of the reactor."""

    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (%s)", (turns,))
        await transaction.rows("SELECT pg_sleep(0.001)")

    await until(lambda: notes.connections == 4)
    waiting = [Deferred.fromCoroutine(notes.transact(work)), Deferred.fromCoroutine(notes.rows("SELECT pg_sleep(0.002)"))]
    for _ in range(turns):
        await deferLater(reactor(), 0)
    for one in waiting:
        one.addErrback(lambda failure: failure.trap(CancelledError))
        one.cancel()
    await until(lambda: notes.busy == 0)
    assert notes.connections == 4
    assert await written(notes) == [turns]
    again = [Deferred.fromCoroutine(notes.transact(lambda transaction: transaction.rows("SELECT 1"))) for _ in range(8)]
    assert await gatherResults(again) == [[(1,)]] * 8


@pytest_twisted.ensureDeferred
async def test_connections_killed_while_idle_are_replaced_before_use(notes: Pool, kill_all: Callable[[], None]) -> None:
    await until(lambda: notes.connections == 4)
    before = {pid for (pid,) in await notes.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'mailsvc tests'")}
    kill_all()
    answers = await gatherResults([Deferred.fromCoroutine(notes.rows("SELECT pg_backend_pid()")) for _ in range(8)])
    assert not before & {pid for [(pid,)] in answers}
    await until(lambda: notes.connections == 4)


@pytest_twisted.ensureDeferred
async def test_a_connection_killed_during_work_fails_only_that_work(notes: Pool, kill_all: Callable[[], None]) -> None:
    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        await transaction.rows("SELECT pg_sleep(30)")

    await until(lambda: notes.connections == 4)
    begun = notes.statements
    waiting = [Deferred.fromCoroutine(notes.transact(work)), Deferred.fromCoroutine(notes.rows("SELECT pg_sleep(30)"))]
    await until(lambda: notes.statements == begun + 3)
    kill_all()
    unknown = []
    for one in waiting:
        with pytest.raises(Unavailable) as raised:
            await one
        unknown.append(raised.value.unknown)
    assert unknown == [False, True]  # before COMMIT nothing is kept; a statement of its own may have been
    assert await written(notes) == []
    await until(lambda: notes.connections == 4)


@pytest_twisted.ensureDeferred
async def test_a_commit_without_a_reply_is_unknown(notes: Pool, kill_all: Callable[[], None]) -> None:
    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        await transaction.run(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END';"
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait();"
            "INSERT INTO notes VALUES (2)"
        )

    before = notes.statements
    waiting = Deferred.fromCoroutine(notes.transact(work))
    await until(lambda: notes.statements == before + 3)
    kill_all()
    with pytest.raises(Unavailable) as raised:
        await waiting
    assert raised.value.unknown


@pytest_twisted.ensureDeferred
async def test_losing_the_connection_before_the_commit_is_a_definite_failure(notes: Pool, kill_all: Callable[[], None]) -> None:
    async def work(transaction: Transaction) -> None:
        await transaction.run("INSERT INTO notes VALUES (1)")
        kill_all()
        await until(lambda: notes.connections == 0)

    await until(lambda: notes.connections == 4)
    with pytest.raises(Unavailable) as raised:
        await notes.transact(work)
    assert not raised.value.unknown
    assert await written(notes) == []


@pytest_twisted.ensureDeferred
async def test_the_server_cancels_long_statements(database: str) -> None:
    pool = Pool(database, reactor(), 2, limits=Limits(statement=0.05, lock=0.02, idle_in_transaction=0.05))
    await pool.start()
    with pytest.raises(TimedOut):
        await pool.rows("SELECT pg_sleep(10)")

    async def second(transaction: Transaction) -> None:
        await transaction.rows("SELECT pg_advisory_xact_lock(7)")

    async def first(transaction: Transaction) -> None:
        await second(transaction)
        with pytest.raises(Contention) as raised:
            await pool.transact(second)
        assert raised.value.sqlstate == "55P03"

    async def dozing(transaction: Transaction) -> None:
        await second(transaction)
        await deferLater(reactor(), 0.2)

    await pool.transact(first)
    with pytest.raises(Unavailable):
        await pool.transact(dozing)
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_waiting_is_bounded_in_number_and_time(database: str) -> None:
    pool = Pool(database, reactor(), 1, queue=2, timeout=0.05)
    await pool.start()
    work = [Deferred.fromCoroutine(pool.rows("SELECT pg_sleep(0.2)")) for _ in range(3)]
    with pytest.raises(Unavailable, match="2 other callers are waiting"):
        await pool.rows("SELECT 1")
    for late in work[1:]:
        with pytest.raises(Unavailable, match="No database connection became free"):
            await late
    await work[0]
    assert await pool.rows("SELECT 1") == [(1,)]
    assert (pool.waiting, pool.busy) == (0, 0)
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_using_the_pool_inside_a_transaction_never_hangs(database: str) -> None:
    pool = Pool(database, reactor(), 1, timeout=0.02)
    await pool.start()

    async def nested(transaction: Transaction) -> None:
        await transaction.rows("SELECT 1")
        await pool.rows("SELECT 2")

    with pytest.raises(Unavailable, match="became free"):
        await pool.transact(nested)
    assert await pool.rows("SELECT 1") == [(1,)]
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_a_connection_that_the_driver_found_dead_is_replaced(database: str) -> None:
    pool = Pool(database, reactor(), 1)
    await pool.start()

    def die(link: Any) -> None:
        reactor().removeReader(link)
        link._connection.close()

    async def between(transaction: Transaction) -> None:
        await transaction.rows("SELECT 1")
        die(transaction._connection)
        raise LookupError

    async def within(transaction: Transaction) -> None:
        link = transaction._connection
        cursor = link.cursor()

        class Dying:
            def execute(self, *_: Any) -> None:
                die(link)
                raise psycopg2.DatabaseError("error with status PGRES_TUPLES_OK and no message from the libpq")

            def close(self) -> None:
                cursor.close()

        link.cursor = Dying
        await transaction.rows("SELECT 1")

    with pytest.raises(LookupError):  # and not the result of the rollback
        await pool.transact(between)
    with pytest.raises(Unavailable, match="PGRES_TUPLES_OK"):
        await pool.transact(within)
    assert await pool.rows("SELECT 1") == [(1,)]
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_many_statements_that_fail_before_being_sent_do_not_recurse(database: str) -> None:
    pool = Pool(database, reactor(), 1, queue=5000)
    await pool.start()
    work = [Deferred.fromCoroutine(pool.rows("SELECT %s", ("\0",))) for _ in range(3000)]
    for one in work:
        with pytest.raises(DataRejected):
            await one
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_stopping_finishes_work_and_refuses_more(notes: Pool, database: str) -> None:
    pool = Pool(database, reactor(), 1)
    await pool.start()
    work = [Deferred.fromCoroutine(pool.rows("SELECT pg_sleep(0.02); INSERT INTO notes VALUES (%s)", (n,))) for n in (1, 2)]
    stopped = Deferred.fromCoroutine(pool.stop())
    with pytest.raises(Unavailable, match="closed"):
        await pool.rows("SELECT 1")
    await gatherResults(work)
    await stopped
    assert pool.connections == 0
    assert await written(notes) == [1, 2]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [("dbname=there_is_none", "does not exist"), ("host=/nowhere", "/nowhere"), ("host=name.invalid", "name.invalid has no address")],
)
@pytest_twisted.ensureDeferred
async def test_start_raises_what_is_wrong(database: str, extra: str, reason: str) -> None:
    pool = Pool(f"{database} {extra}", reactor(), 2)
    with pytest.raises(Unavailable, match=reason):
        await pool.start()
    with pytest.raises(Unavailable):
        await pool.rows("SELECT 1")


def test_uuids_are_not_confused_with_text() -> None:
    assert str(Conflict("a", None, "23505")) == "constraint='a', sqlstate='23505'"
    assert UUID(int=1) != "00000000-0000-0000-0000-000000000001"


@pytest_twisted.ensureDeferred
async def test_a_unix_socket_holds_more_than_a_piece_of_a_message(pool: Pool) -> None:
    [connection, *_] = pool._connections
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:
        if connected.family == socket.AF_UNIX:
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > PIECE
