"""Brings a database to this release's schema: applies the SQL files of migrations/ in order, each in one transaction.

It blocks, so it runs before anything listens. Processes that start at the same time take turns under an advisory lock. A statement
that does not get its lock within 5 s fails instead of making others queue behind it; the file is then tried again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import attrs
import psycopg2
from psycopg2.extensions import parse_dsn

from mailsvc.store.cells.views import attach, find, suit
from mailsvc.store.postgres.cells import at, cell_of, through_citus
from mailsvc.store.postgres.errors import Unavailable, translated
from mailsvc.store.postgres.targets import bounded

SOURCE = "package:mailsvc.store:migrations"
LOCK = 0x6D61696C737663  # "mailsvc"
LOCK_TIMEOUT_MS = 5000
TRIES = 3
# Whatever the role's are. Poolers drop options, so they are not sent as such.
SESSION = """
SET lock_timeout = %s; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0;
SET default_transaction_isolation = 'read committed'; SET TimeZone = 'UTC'
"""
LONGEST_WAIT = 600.0  # seconds, for another process that is migrating


@attrs.define(eq=False, auto_exc=True)
class MigrationFailed(Exception):
    """A file could not be applied. The database is unchanged by it."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@attrs.define(eq=False, auto_exc=True)
class TooOld(Exception):
    """A newer release has changed the database in a way that is incompatible with this one."""

    needs: str

    def __str__(self) -> str:
        return f"A newer release has changed it: this one lacks {self.needs}. Install the release that the other processes run"


def migrate(dsn: str, source: str = SOURCE) -> list[str]:
    """Apply missing migrations. Returns their names. In a cell, its views follow; without missing ones, the coordinator is not needed."""
    try:
        return _migrate_with_views(dsn, source)
    except psycopg2.Error as error:  # of connecting, of waiting for another process, or of a cell's views
        raise translated(error) from error


def _migrate_with_views(dsn: str, source: str) -> list[str]:
    cell = cell_of(dsn)
    if cell is None:
        return _migrate(dsn, source)
    place = find(dsn, cell)
    applied = []
    if _missing(through_citus(at(dsn, place.node), cell), source):
        coordinator = at(dsn, place.coordinator)
        applied = _migrate(through_citus(coordinator, cell), source)
        suit(coordinator, cell)
    attach(at(dsn, place.node), cell)
    return applied


def create_tables(coordinator: str, cell: str) -> None:
    """Fill the empty schema of a new cell. Its views are created where it is used first."""
    _migrate(through_citus(coordinator, cell), SOURCE)
    suit(coordinator, cell)


def _missing(dsn: str, source: str) -> bool:
    from yoyo.migrations import read_migrations

    backend = _connect(dsn)
    try:
        known = read_migrations(source)
        _fits(backend.connection, {migration.id for migration in known})
        return bool(list(backend.to_apply(known)))
    finally:
        backend.connection.close()


def _migrate(dsn: str, source: str) -> list[str]:
    from yoyo.migrations import read_migrations

    backend = _connect(dsn)
    try:
        with _locked(backend.connection):
            applied, known = [], read_migrations(source)
            _fits(backend.connection, {migration.id for migration in known})
            for migration in backend.to_apply(known):
                _apply(backend, migration)
                applied.append(migration.id)
            return applied
    finally:
        backend.connection.close()


def _fits(connection: Any, known: Collection[str]) -> None:
    """Migrations that only add may be unknown to this release. One that removed something has recorded itself in `house`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('house') IS NOT NULL")
        if cursor.fetchone()[0]:
            cursor.execute("SELECT needs FROM house WHERE needs IS NOT NULL")
            for (needs,) in cursor.fetchall():
                if needs not in known:
                    raise TooOld(needs)


def _apply(backend: Any, migration: Any) -> None:
    name = f"{migration.id}.sql"
    for attempt in range(TRIES):
        try:
            backend.apply_one(migration)
            return
        except psycopg2.errors.LockNotAvailable as error:
            if attempt == TRIES - 1:
                raise MigrationFailed(name, _message(error)) from error
        except psycopg2.Error as error:
            if backend.connection.closed:  # then the rollback failed, too, and its error says no more
                raise Unavailable(f"The connection was lost while {name} was being applied.") from error
            raise MigrationFailed(name, _message(error)) from error


def _message(error: psycopg2.Error) -> str:
    return str(error).strip() or type(error).__name__


@contextmanager
def _locked(connection: Any) -> Iterator[None]:
    """Hold the advisory lock. The server releases it if this process dies."""
    deadline = time.monotonic() + LONGEST_WAIT
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,))
            if cursor.fetchone()[0]:
                break
            if time.monotonic() > deadline:
                raise MigrationFailed("(none)", f"Another process has been migrating for {LONGEST_WAIT:.0f} s.")
            time.sleep(0.1)
        try:
            yield
        finally:
            if not connection.closed:
                cursor.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))


def _connect(dsn: str) -> Any:
    from yoyo.backends.core.postgresql import PostgresqlBackend
    from yoyo.connections import DatabaseURI
    from yoyo.migrations import default_migration_table

    class Backend(PostgresqlBackend):  # type: ignore[misc]
        """Applies a file and records it in one transaction, on the connection that holds the lock."""

        def apply_one(self, migration: Any, force: bool = False, mark: bool = True) -> None:
            self.ensure_internal_schema_updated()
            migration.load()
            if not migration.use_transactions:
                migration.process_steps(self, "apply")
            with self.transaction():
                if migration.use_transactions:
                    migration.process_steps(self, "apply")
                self.mark_one(migration)

        @contextmanager
        def lock(self, timeout: int = 10) -> Iterator[None]:
            yield  # _locked already holds one

        def get_log_data(self, migration: Any = None, operation: str = "apply") -> dict[str, Any]:
            return {
                "id": str(uuid4()),
                "migration_id": migration.id if migration else None,
                "migration_hash": migration.hash if migration else None,
                "username": str(os.getuid()),
                "hostname": socket.gethostname(),  # no DNS lookup
                "created_at_utc": datetime.now(UTC).replace(tzinfo=None),
                "operation": operation,
            }

    # Of several hosts, the pool passes over standbys, whatever the DSN says.
    arguments = parse_dsn(bounded(dsn)) | {"target_session_attrs": "read-write"}
    arguments |= {"application_name": "mailsvc migrate", "client_encoding": "UTF8"}
    database = arguments.pop("dbname", "")
    uri = DatabaseURI("postgresql", None, None, None, None, database, arguments)
    backend = Backend(uri, default_migration_table)
    with backend.connection.cursor() as cursor:
        cursor.execute(SESSION, (LOCK_TIMEOUT_MS,))
    return backend
