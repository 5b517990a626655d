"""The daemon's database role: it does all of its work, and cannot change the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn

from mailsvc.store.audit import anchors, protection
from mailsvc.store.audit.verification import verify
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people.audit import by_operator, write
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.pool import Pool

NOW = datetime.now(UTC)
ACCOUNT = UUID(int=1)
ROLE = "mailsvc_daemon_of_tests"


@pytest.fixture(scope="module")
def role(postgres: str, administer: Callable[..., None]) -> Iterator[str]:
    administer(postgres, f"CREATE ROLE {ROLE}")
    yield ROLE
    administer(postgres, f"DROP ROLE {ROLE}")  # the databases of the tests are gone


@pytest_twisted.async_yield_fixture
async def daemon(role: str, pool: Pool, database: str) -> AsyncIterator[Pool]:
    """A pool of the daemon's role, after the privileges were set."""
    from twisted.internet import reactor

    await protection.protect(pool, ROLE)
    daemon = Pool(make_dsn(database, options=f"-c role={ROLE}"), reactor, size=2, name="mailsvc tests")
    await daemon.start()
    yield daemon
    await daemon.stop()


async def act(pool: Pool) -> None:
    await pool.transact(lambda tx: write(tx, [by_operator(ACCOUNT, "changed")], NOW.timestamp()))


@pytest_twisted.ensureDeferred
async def test_the_daemon_works_with_its_role(daemon: Pool, pool: Pool) -> None:
    assert migrate(daemon.dsn) == []
    assert await partitions.ensure(daemon, NOW + timedelta(days=20))
    await act(daemon)
    assert await anchors.make(daemon, NOW, timedelta(0), lambda data: b"signed") == 1
    await daemon.run("UPDATE audit_details SET actor = NULL, actor_salt = NULL")
    assert (await verify(daemon, ACCOUNT, {})).problems == ()
    assert await Retention(daemon).sweep({"requests": 1}, NOW + timedelta(days=19)) != []
    assert await protection.weaknesses(daemon) == []
    await protection.protect(pool, ROLE)  # again, as after an upgrade
    await act(daemon)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE audit SET action = 'x'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "DROP TABLE audit CASCADE",
        "ALTER TABLE audit DISABLE TRIGGER audit_append_only",
        "ALTER TABLE audit RENAME TO other",
        "CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        "SET session_replication_role = replica",
        "UPDATE audit_anchors SET body = ''",
        "DELETE FROM audit_anchors",
        "DELETE FROM audit_details",
        "DELETE FROM audit_heads",
        "DROP SCHEMA public CASCADE",
    ],
)
async def test_the_daemon_cannot_change_the_audit_log(daemon: Pool, sql: str) -> None:
    await act(daemon)
    with pytest.raises(StoreError, match=r"permission denied|must be owner"):
        await daemon.run(sql)


@pytest_twisted.ensureDeferred
async def test_what_weakens_the_protection_is_found(daemon: Pool, pool: Pool, administer: Callable[..., None]) -> None:
    assert protection.SUPERUSER in await protection.weaknesses(pool)
    for change, back, why in (
        (f"GRANT DELETE ON audit TO {ROLE}", f"REVOKE DELETE ON audit FROM {ROLE}", protection.CAN_CHANGE),
        (f"GRANT UPDATE ON audit_anchors TO {ROLE}", f"REVOKE UPDATE ON audit_anchors FROM {ROLE}", protection.CAN_CHANGE),
        (f"ALTER SCHEMA public OWNER TO {ROLE}", "ALTER SCHEMA public OWNER TO CURRENT_USER", protection.OWNS_ALL),
        (
            f"ALTER FUNCTION audit_is_append_only() OWNER TO {ROLE}",
            "ALTER FUNCTION audit_is_append_only() OWNER TO CURRENT_USER",
            protection.OWNS,
        ),
    ):
        administer(pool.dsn, change)
        assert await protection.weaknesses(daemon) == [why], change
        administer(pool.dsn, back)
    assert await protection.weaknesses(daemon) == []


@pytest_twisted.ensureDeferred
async def test_impossible_protection_is_refused(daemon: Pool, pool: Pool) -> None:
    [(superuser,)] = await pool.rows("SELECT current_user::text")
    for role, asked, why in ((superuser, pool, "superuser"), ("nobody_at_all", pool, "no role"), (ROLE, daemon, "Connect as")):
        with pytest.raises(protection.CannotProtect, match=why):
            await protection.protect(asked, role)
