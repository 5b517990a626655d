"""A lock that keeps mail from being stored is noticed, and so is its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg2
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.store.mail.write_check import LASTS, PATIENCE, WriteCheck, locked
from mailsvc.store.postgres import server_settings
from mailsvc.store.postgres.connection import Limits
from mailsvc.store.postgres.errors import Contention, StoreError
from mailsvc.store.postgres.partitions import name_of
from mailsvc.store.postgres.pool import Pool
from tests.store.postgres.waiting import reactor

NOW = datetime.now(UTC)


@pytest_twisted.async_yield_fixture
async def impatient(database: str) -> AsyncIterator[Pool]:
    """A pool whose statements wait for locks only shortly."""
    pool = Pool(database, reactor(), size=1, limits=Limits(lock=0.05))
    await pool.start()
    yield pool
    await pool.stop()


@pytest.mark.parametrize(
    ("table", "mode"),
    [
        *((table, "ACCESS EXCLUSIVE") for table in ("emails", "messages", "events", "queue", "fresh_events")),
        *((name_of(table, NOW), "SHARE") for table in ("emails", "messages", "events")),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_locked_table_is_noticed_until_it_is_free(impatient: Pool, database: str, table: str, mode: str) -> None:
    """VACUUM FULL takes the first lock, CREATE INDEX the second."""
    clock = Clock()
    clock.rightNow = NOW.timestamp()
    check = WriteCheck(impatient, clock)
    await check.look()
    assert check.problem is None and await locked(impatient, NOW) is None
    with psycopg2.connect(database) as other, other.cursor() as session:
        session.execute(f"LOCK TABLE ONLY {table} IN {mode} MODE")
        with pytest.raises(Contention):
            await check.look()
        clock.advance(PATIENCE - 1)
        assert check.problem is None, "until then, requests wait and succeed"
        with pytest.raises(Contention):
            await check.look()
        clock.advance(1)
        assert check.problem is not None and check.problem.startswith("for 10 s no mail could be stored")
        assert await locked(impatient, NOW) == "a table that mail is stored in is locked"
    other.close()
    await check.look()
    assert check.problem is None and await locked(impatient, NOW) is None


@pytest_twisted.ensureDeferred
async def test_a_commit_that_waits_for_a_standby_is_reported_until_it_ends(impatient: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "SELECT %s::float8 > 0"
    monkeypatch.setattr(server_settings, "COMMITS_WAIT", waits)
    clock = Clock()
    monkeypatch.setattr(impatient, "reactor", clock)
    check = WriteCheck(impatient, clock)
    await check.look()
    assert check.problem == "commits wait for a standby of Postgres"
    assert impatient.commits_wait
    monkeypatch.setattr(server_settings, "COMMITS_WAIT", waits.replace(">", "<"))
    await check.look()
    assert check.problem is None
    assert not impatient.commits_wait


@pytest_twisted.ensureDeferred
async def test_the_pool_writes_again_if_nobody_can_look(impatient: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_settings, "COMMITS_WAIT", "SELECT %s::float8 > 0")
    clock = Clock()
    monkeypatch.setattr(impatient, "reactor", clock)
    await WriteCheck(impatient, clock).look()
    clock.advance(LASTS - 0.1)
    assert impatient.commits_wait
    clock.advance(0.1)
    assert not impatient.commits_wait, "without a connection, a standby may have taken over"


@pytest_twisted.ensureDeferred
async def test_a_check_without_an_answer_is_a_problem_too() -> None:
    class Silent(Pool):
        async def rows(self, sql: object, params: object = ()) -> list[tuple[object, ...]]:
            return await answer

    answer: Deferred[list[tuple[object, ...]]] = Deferred()
    clock = Clock()
    check = WriteCheck(Silent("", clock), clock)
    looking = Deferred.fromCoroutine(check.look())
    clock.advance(PATIENCE)
    assert check.problem is not None
    answer.errback(StoreError())
    with pytest.raises(StoreError):
        await looking
    assert check.problem is not None
