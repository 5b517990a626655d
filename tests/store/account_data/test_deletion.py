"""Closing an account: a period of grace, then everything is deleted, however often that is interrupted, and again after a restore."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.clock import utc
from mailsvc.runtime import privacy
from mailsvc.runtime.privacy import ErasureService
from mailsvc.store.account_data import tables
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.people.audit import by_operator
from mailsvc.store.postgres.errors import TimedOut
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import inventory
from mailsvc.store.privacy.erasures import Erasures, the_account
from mailsvc.store.privacy.journal import Journal, Recorded, apply
from tests.store.fixtures import ACCOUNT, OTHER, StoreRig, email
from tests.store.privacy.filling import KEYS, fill, leaks
from tests.store.privacy.test_eraser import eraser
from tests.store.privacy.test_killed import Killed, Mortal

CELL = [name for name in (*tables.ARCHIVED, *tables.LEFT_OUT) if name not in tables.KEPT]


@pytest_twisted.ensureDeferred
async def test_an_account_is_suspended_at_once_and_can_be_kept_until_the_end(pool: Pool, database: str) -> None:
    from twisted.internet import reactor

    fill(database)
    await pool.run("UPDATE accounts SET suspended_at = NULL")
    notified: list[str] = []
    closing = Closing(pool, reactor, notified.append)
    at = utc(reactor) + timedelta(days=30)
    assert await closing.close(ACCOUNT, at, [by_operator(ACCOUNT, "account closed")])
    assert not await closing.close(ACCOUNT, at, []) and await closing.closes_at(ACCOUNT) == at
    assert (await pool.rows("SELECT suspended_at IS NOT NULL FROM accounts"), await closing.due()) == ([(True,)], [])
    assert await closing.reopen(ACCOUNT, [by_operator(ACCOUNT, "account reopened")]) and not await closing.reopen(ACCOUNT, [])
    assert await pool.rows("SELECT suspended_at, closes_at FROM accounts") == [(None, None)]
    assert len(notified) == 2
    await closing.close(ACCOUNT, utc(reactor) - timedelta(seconds=1), [])
    assert await closing.due() == []  # processes may still accept its mail
    later = Clock()
    later.advance(utc(reactor).timestamp() + 4)
    assert await Closing(pool, later).due() == [ACCOUNT] and not await closing.reopen(ACCOUNT, [])  # too late


@pytest_twisted.ensureDeferred
async def test_closing_and_reopening_does_not_lift_a_suspension(pool: Pool, database: str) -> None:
    from twisted.internet import reactor

    fill(database)
    await pool.run("UPDATE accounts SET suspended_at = '2026-01-01Z'")
    before = await pool.rows("SELECT suspended_at FROM accounts")
    closing = Closing(pool, reactor)
    assert await closing.close(ACCOUNT, utc(reactor) + timedelta(days=30), []) and await closing.reopen(ACCOUNT, [])
    assert await pool.rows("SELECT suspended_at FROM accounts") == before


@pytest_twisted.ensureDeferred
async def test_everything_is_deleted_after_any_number_of_kills_and_others_keep_what_they_have(store: StoreRig, database: str) -> None:
    from twisted.internet import reactor

    fill(database)
    await store.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'other', now())", (OTHER,))
    await store.accept(email("a@else.example", account=OTHER))
    for n in range(3):
        await store.accept(email(f"a{n}@else.example"))
    await Closing(store.pool, reactor).close(ACCOUNT, utc(reactor), [by_operator(ACCOUNT, "account closed", "a name")])
    begun = await eraser(store.pool).erasures.begin(ACCOUNT, eraser(store.pool).erasures.new_id(), the_account(ACCOUNT), False, "command")
    kills, done = 0, None
    while done is None and kills < 500:
        mortal: Any = Mortal(store.pool, 3 if kills % 2 else 2, committed=kills % 2 == 0)
        try:
            done = await eraser(mortal).run(begun, the_account(ACCOUNT))
        except Killed:
            kills += 1
        if kills >= 40 and await store.pool.rows("SELECT 1 FROM members"):  # one is still signed in, and adds keys
            await store.pool.run(
                "INSERT INTO api_keys (id, account_id, name, hash, hint, permission, created_at)"
                " VALUES (%s, %s, 'late', %s, 'late', 'full_access', now())", (UUID(int=kills), ACCOUNT, b"%d" % kills)
            )  # fmt: skip
        if kills == 40:  # a request that began before has been slow
            await store.accept(email("late@else.example"))
    assert kills >= 50 and done is not None and done.finished_at is not None and done.account_id == ACCOUNT
    for table in CELL:
        if table not in ("dkim_keys", "domain_history"):
            assert await store.pool.rows(f"SELECT 1 FROM {table} WHERE account_id = %s", (ACCOUNT,)) == [], table
    for table in ("dkim_keys", "domain_history", "users", "members", "sessions"):
        assert await store.pool.rows(f"SELECT 1 FROM {table}") == [], table
    assert await store.pool.rows("SELECT id FROM accounts") == [(OTHER,)]
    assert len(await store.pool.rows("SELECT 1 FROM emails")) == 1
    assert await store.pool.rows("SELECT 1 FROM audit_details WHERE account_id = %s AND subject IS NOT NULL", (ACCOUNT,)) == []
    assert len(await store.pool.rows("SELECT 1 FROM audit WHERE account_id = %s", (ACCOUNT,))) == 1
    assert (done.counts["erased"]["emails"], done.counts["erased"]["dkim_keys"], done.counts["erased"]["accounts"]) == (5, 1, 1)
    others = {name for name, table in inventory.tables().items() if table.where == "installation"} - {
        "accounts",
        "users",
        "sessions",
        "links",
    }
    assert {table for table, _ in leaks(database)} <= others - {"passkeys", "identities", "address_changes"}


@pytest_twisted.ensureDeferred
async def test_a_running_daemon_deletes_when_the_time_has_come_and_again_after_a_restore(
    store: StoreRig, database: str, tmp_path: Path
) -> None:
    from twisted.internet import reactor

    pool = store.pool
    fill(database)
    journal = Journal(tmp_path / "erasures", KEYS, 35)
    recorded = Recorded(eraser(pool), journal)
    service = ErasureService(reactor, recorded)
    await service.continue_all()
    assert len(await pool.rows("SELECT 1 FROM accounts")) == 1
    earlier = Clock()
    earlier.advance(utc(reactor).timestamp() - 4)
    closing = Closing(pool, earlier)
    await closing.close(ACCOUNT, utc(earlier), [])
    await pool.run("DELETE FROM account_moves")
    await pool.run("INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, 'leaving', 'eu_2', now())", (ACCOUNT,))
    await service.continue_all()  # half of its rows are in the other cell
    assert await closing.moving(ACCOUNT) and len(await pool.rows("SELECT 1 FROM accounts")) == 1
    await pool.run("DELETE FROM account_moves")
    assert not await closing.moving(ACCOUNT)
    await service.continue_all()
    assert await pool.rows("SELECT 1 FROM accounts") == []
    [entry] = journal.entries()
    await store.accept(email("late@else.example"))  # its upload began before
    await ErasureService(reactor, recorded).continue_all()
    assert [await pool.rows(f"SELECT 1 FROM {table}") for table in ("emails", "messages", "events", "queue")] == [[]] * 4
    assert entry.email == the_account(ACCOUNT)
    await pool.run("TRUNCATE erasures")
    fill_again(database)
    assert await apply(eraser(pool), journal, restored=True) == 1
    assert await pool.rows("SELECT 1 FROM accounts") == [] and await pool.rows("SELECT 1 FROM contacts") == []
    fill_again(database)  # imported from an archive, for example: it was deleted before, not now
    assert await apply(eraser(pool), journal, restored=False) == 0
    await ErasureService(reactor, recorded).continue_all()
    assert len(await pool.rows("SELECT 1 FROM emails")) == 1 and len(await pool.rows("SELECT 1 FROM accounts")) == 1


@pytest_twisted.ensureDeferred
async def test_accounts_that_fail_hold_up_neither_others_nor_erasures(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    from twisted.internet import reactor

    tried: list[UUID] = []

    async def fail(self: Any, account_id: UUID, *given: Any) -> int:
        tried.append(account_id)
        raise TimedOut("canceling statement due to statement timeout")

    async def both(self: Any, *given: Any) -> list[UUID]:
        return [ACCOUNT, OTHER]

    recorded = Recorded(eraser(store.pool), None)
    begun = await recorded.begin(ACCOUNT, "a@else.example", False, "api")
    for owner, name, double in ((Recorded, "begin", fail), (privacy, "sweep", fail), (Closing, "due", both), (Erasures, "deleted", both)):
        monkeypatch.setattr(owner, name, double)
    with pytest.raises(TimedOut):
        await ErasureService(reactor, recorded).continue_all()
    found = await recorded.eraser.erasures.get(ACCOUNT, begun.id)
    assert found is not None and found.finished_at is not None and tried == [ACCOUNT, OTHER] * 2


@pytest_twisted.ensureDeferred
async def test_an_erasure_that_waits_does_not_keep_others_waiting(store: StoreRig) -> None:
    from twisted.internet import reactor

    await store.accept(email("a@else.example"))
    await store.claim("else.example")  # it is being sent
    recorded = Recorded(eraser(store.pool), None)
    damaged = await recorded.begin(ACCOUNT, "c@else.example", False, "api")
    await store.pool.run("UPDATE erasures SET address = %s WHERE id = %s", (b"\1damaged", damaged.id))
    waiting = await recorded.begin(ACCOUNT, "a@else.example", False, "api")
    later = await recorded.begin(ACCOUNT, "b@else.example", False, "api")
    service = ErasureService(reactor, recorded, at_once=1)
    for _ in range(3):
        await service.continue_all()
    found = [await recorded.eraser.erasures.get(ACCOUNT, each.id) for each in (waiting, later)]
    assert [each is not None and each.finished_at is not None for each in found] == [False, True]


def fill_again(database: str) -> None:
    """Yesterday's backup."""
    import psycopg2

    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT string_agg(relname, ', ') FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
            " AND relnamespace = 'public'::regnamespace AND relname NOT LIKE '%yoyo%' AND relname NOT IN ('house', 'erasures')"
        )
        [(names,)] = cursor.fetchall()
        cursor.execute(f"ALTER TABLE audit DISABLE TRIGGER USER; TRUNCATE {names} CASCADE")
    connection.close()
    fill(database)
