"""Parameters sent separately from the statement: same results and errors as through the driver, also with a slow server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from uuid import uuid4

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mailsvc.store.postgres import libpq
from mailsvc.store.postgres.connection import Limits
from mailsvc.store.postgres.errors import Conflict, DataRejected, StatementFailed, StoreError, TimedOut, Unavailable
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.prepared import Prepared

ECHO = Prepared("echo", ("bytea", "uuid", "integer", "json"), "SELECT $1, $2, $3, $4::jsonb, octet_length($1)::bigint, NULL::uuid")
SLEEP = Prepared("sleep", ("double precision", "bytea"), "SELECT 1 FROM pg_sleep($1) WHERE $2 IS NOT NULL")
KEEP = Prepared("keep", ("integer", "bytea"), "INSERT INTO kept VALUES ($1, $2)")
VALUES = Prepared(
    "vals", ("text[]", "timestamptz", "text"), "SELECT cardinality($1), $1[1], $2, $2 - interval '27 years', $2 < 'infinity', $3"
)
WITHOUT = Prepared("without", (), "SELECT set_config('enable_seqscan', 'off', true)")
SETTING = Prepared("setting", ("uuid[]",), "SELECT current_setting('enable_seqscan'), $1 = '{}', cardinality($1)", WITHOUT)
TABLE = "CREATE TABLE kept (n integer PRIMARY KEY CHECK (n < 10), data bytea NOT NULL)"


def reactor() -> Any:
    from twisted.internet import reactor

    return reactor


@pytest.fixture(params=["beside", "within"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with separate parameters, once through the driver, as if libpq lacked these functions."""
    if request.param == "within":
        monkeypatch.setattr(libpq, "LIBRARY", None)


def test_the_library_is_found() -> None:
    assert libpq.LIBRARY is not None


@pytest_twisted.ensureDeferred
async def test_values_round_trip(pool: Pool, way: None) -> None:
    one = uuid4()
    for data in (b"", bytes(range(256)) * 3, b"\\x00'%s"):
        [row] = await pool.rows(ECHO, (data, one, -7, '{"a": ["\u00fc%"]}'))
        assert row == (data, one, -7, {"a": ["\u00fc%"]}, len(data), None)


@pytest_twisted.ensureDeferred
async def test_texts_lists_and_timestamps(pool: Pool, way: None) -> None:
    at = datetime(2026, 11, 21, 4, 5, 6, 789_012, UTC)
    for texts in ([], ['a"b\\c,{}', "", "NULL", "\u00fc'%s"]):
        [row] = await pool.rows(VALUES, (texts, at, "it's 5%"))
        assert row == (len(texts), texts[0] if texts else None, at, at.replace(year=1999), True, "it's 5%")


@pytest_twisted.ensureDeferred
async def test_settings_sent_first_apply_to_the_statement_only(pool: Pool, way: None) -> None:
    for _ in range(2 * pool.size):
        assert await pool.rows(SETTING, ([],)) == [("off", True, 0)]
        assert await pool.rows("SHOW enable_seqscan") == [("on",)]

    async def inside(tx: Transaction) -> None:
        assert await tx.rows(SETTING, ([uuid4(), uuid4()],)) == [("off", False, 2)]

    await pool.transact(inside)


@pytest_twisted.ensureDeferred
async def test_a_large_statement_is_sent_without_blocking(pool: Pool) -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    data = bytes(range(256)) * 80_000
    waiting = Deferred.fromCoroutine(pool.rows(ECHO, (data, uuid4(), 1, "{}")))
    while not waiting.called:
        await deferLater(reactor(), 0.0, turn)
    [row] = await waiting
    assert row[0] == data
    assert turns > 1


@pytest_twisted.ensureDeferred
async def test_errors_are_translated_and_the_connection_stays_usable(database: str, way: None) -> None:
    pool = Pool(database, reactor(), 1)
    await pool.start()
    await pool.run(TABLE)
    backend = await pool.rows("SELECT pg_backend_pid()")
    assert await pool.run(KEEP, (1, b"\0")) == 1
    for params, kind in (((1, b""), Conflict), ((10, b""), DataRejected), ((2, None), DataRejected)):
        with pytest.raises(kind):
            await pool.run(KEEP, params)
    with pytest.raises(DataRejected):
        await pool.rows(ECHO, (b"", uuid4(), 1, '"\\u0000"'))
    for wrong in (Prepared("wrong", (), "SELECT nothing"), Prepared("failing", ("integer",), "SELECT 1 / $1", WITHOUT)):
        with pytest.raises((StatementFailed, DataRejected)):
            await pool.rows(wrong, (0,) if wrong.types else ())
    assert await pool.rows("SELECT n, data FROM kept") == [(1, b"\0")]
    assert await pool.rows("SELECT pg_backend_pid()") == backend
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_a_transaction_is_all_or_nothing(pool: Pool, way: None) -> None:
    await pool.run(TABLE)

    async def two(tx: Transaction) -> None:
        await tx.run(KEEP, (1, b"one"))
        await tx.run(KEEP, (1, b"again"))

    with pytest.raises(Conflict):
        await pool.transact(two)
    assert await pool.rows("SELECT n FROM kept") == []
    await pool.transact(lambda tx: tx.run(KEEP, (2, b"two")))
    assert await pool.rows("SELECT n FROM kept") == [(2,)]


@pytest_twisted.ensureDeferred
async def test_a_server_that_disconnects_during_a_statement(pool: Pool, administer: Callable[..., None], database: str) -> None:
    waiting = [Deferred.fromCoroutine(pool.rows(SLEEP, (60, b"x"))) for _ in range(2)]
    there = 0
    while there < 2:
        [(there,)] = await pool.rows("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep($1)%' AND wait_event = 'PgSleep'")
    administer(database, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    for each in waiting:
        with pytest.raises(Unavailable) as error:
            await each
        assert error.value.unknown
    assert (await pool.rows(ECHO, (b"x", uuid4(), 1, "{}")))[0][0] == b"x"


@pytest_twisted.ensureDeferred
async def test_time_limits_are_enforced(database: str) -> None:
    pool = Pool(database, reactor(), 1, limits=Limits(statement=0.05))
    await pool.start()
    with pytest.raises(TimedOut):
        await pool.rows(SLEEP, (60, b"x"))
    assert (await pool.rows(ECHO, (b"x", uuid4(), 1, "{}")))[0][0] == b"x"
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_stopping_the_pool_is_bounded_in_time(database: str) -> None:
    pool = Pool(database, reactor(), 1, name="impatient")
    await pool.start()
    waiting = Deferred.fromCoroutine(pool.rows(SLEEP, (60, b"x" * 3_000_000)))
    await pool.stop(timeout=0.01)
    with pytest.raises(StoreError):
        await waiting


@pytest_twisted.ensureDeferred
async def test_many_rows_are_sent_without_waiting_for_their_results(pool: Pool, way: None) -> None:
    await pool.run(TABLE)
    turns, taken = 0, []
    data = bytes(range(256)) * 20_000

    def rows() -> Iterator[tuple[int, bytes]]:
        for n in range(9):
            taken.append(turns)
            yield n, data

    def turn() -> None:
        nonlocal turns
        turns += 1

    await pool.transact(lambda tx: tx.run_each(KEEP, iter(())))
    waiting = Deferred.fromCoroutine(pool.transact(lambda tx: tx.run_each(KEEP, rows())))
    while not waiting.called:
        await deferLater(reactor(), 0.0, turn)
    await waiting
    assert await pool.rows("SELECT n, length(data), data = %s FROM kept", (data,)) == [(n, len(data), True) for n in range(9)]
    assert taken[-1] - taken[0] > 5  # one after another, so that others have their turns and only two are in memory


@pytest_twisted.ensureDeferred
async def test_nothing_more_is_sent_after_a_row_that_fails(database: str, way: None) -> None:
    pool = Pool(database, reactor(), 1)
    await pool.start()
    await pool.run(TABLE)
    backend = await pool.rows("SELECT pg_backend_pid()")
    rows = ((min(n, 3), bytes(1_000_000)) for n in range(1_000_000))  # the fifth has the number of the fourth
    with pytest.raises(Conflict):
        await pool.transact(lambda tx: tx.run_each(KEEP, rows))
    assert await pool.rows("SELECT n FROM kept") == []
    assert await pool.rows("SELECT pg_backend_pid()") == backend
    assert len(list(islice(rows, 1000))) == 1000  # most were not asked for
    await pool.stop()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("good", [0, 1, 5])
async def test_rows_that_cannot_be_made_roll_the_transaction_back(database: str, way: None, good: int) -> None:
    pool = Pool(database, reactor(), 1)
    await pool.start()
    await pool.run(TABLE)

    def rows() -> Iterator[tuple[int, bytes]]:
        yield from ((n, bytes(1_000_000)) for n in range(good))
        raise OSError("cannot be read")

    with pytest.raises(OSError, match="cannot be read"):
        await pool.transact(lambda tx: tx.run_each(KEEP, rows()))
    assert await pool.rows("SELECT n FROM kept") == []
    await pool.stop()


@pytest_twisted.ensureDeferred
async def test_the_time_limit_is_that_of_each_row(database: str) -> None:
    pool = Pool(database, reactor(), 1, limits=Limits(statement=0.2))
    await pool.start()
    await pool.transact(lambda tx: tx.run_each(SLEEP, ((0.1, b"x") for _ in range(5))))
    with pytest.raises(TimedOut):
        await pool.transact(lambda tx: tx.run_each(SLEEP, ((seconds, b"x") for seconds in (0.0, 60.0, 0.0))))
    await pool.stop()
