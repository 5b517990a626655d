"""Fixtures: one Postgres server for the whole run, and a separate migrated database for each test that needs one.

To use another server than the embedded one, set `MAILSVC_TEST_DATABASE` to the URL or conninfo of a superuser. The data of the embedded one
is in the folder `MAILSVC_TEST_MEMORY`, by default /dev/shm, if that is writable and has room; otherwise in a temporary folder.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import greenlet
import psycopg2
import pytest
import pytest_twisted
from hypothesis import settings
from psycopg2.errors import ObjectInUse
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.cells import directly, through_citus
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.partitions import days
from mailsvc.store.postgres.pool import Pool
from tests.citus import CELL, close, create_cell, is_citus
from tests.memory import QUICK, in_memory

TESTS = Path(__file__).parent
_numbers = itertools.count(1)

settings.register_profile("mailsvc", deadline=None)  # durations depend on the machine
settings.load_profile("mailsvc")

# What customers and operators rely on, and what depends on the version of Python. Of the commands, the test that runs each of them without
# starting a process.
_RUNNING = ("cli/test_audited.py", "end_to_end/test_start.py", "end_to_end/relay/test_relay.py", "end_to_end/clients/test_python_client.py")
CONTRACT = ("mail", "http", "store/mail", "store/queue", *_RUNNING)
POSTGRES = ("store", *_RUNNING)  # what depends on the version of Postgres
# The ways in which the store's statements use tables, and what is different in a cell.
CELLS = tuple(
    f"store/{name}.py"
    for name in (
        "postgres/test_cells",
        "mail/test_accept",
        "queue/test_settle",
        "queue/test_processes",
        "events/test_ledger",
        "logs/test_retention",
        "tracking/test_hits",
    )
)
SETS = {"contract": CONTRACT, "postgres": POSTGRES, "cells": CELLS}


# The marks that a file has to name to have tests of a run of `make test-slow`.
SLOW = {"slow and not timed": ("slow",), "slow and timed": ("slow", "timed")}


@cache
def _name_of(mark: str) -> re.Pattern[str]:
    """Finds the mark in a file of tests, or the name of a module that has the mark for others to use."""
    shared = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_") and path != Path(__file__)]
    names = [path.stem for path in shared if f"mark.{mark}" in path.read_text("utf-8")]
    return re.compile("|".join(rf"\b{name}\b" for name in (rf"mark\.{mark}", *names)))


@cache
def _has(path: Path, mark: str) -> bool:
    return _name_of(mark).search(path.read_text("utf-8")) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files that have no test of the set that is run, so that they are not imported."""
    marks = config.option.markexpr
    if collection_path.suffix != ".py":
        return None
    if marks in SLOW:
        return None if all(_has(collection_path, mark) for mark in SLOW[marks]) else True
    if marks not in SETS:
        return None
    place = collection_path.relative_to(TESTS).as_posix()
    return None if place.startswith(SETS[marks]) or f"mark.{marks}" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Iterator[Any]:
    """Ends a test that waits for a coroutine, too. The reactor would only log the failure, and the run would never end."""
    set_ = yield
    test, fail = greenlet.getcurrent(), signal.getsignal(signal.SIGALRM)

    def expired(number: int, frame: FrameType | None) -> None:
        assert callable(fail)
        try:
            fail(number, frame)
        except BaseException as error:
            if greenlet.getcurrent() is test or any(each.f_code.co_filename == str(item.path) for each, _ in walk_stack(frame)):
                raise
            test.throw(error)  # nothing of the test runs: it waits for the reactor

    if callable(fail):
        signal.signal(signal.SIGALRM, expired)
    return set_


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run on every Python version, and those that run on every version of Postgres."""
    for item in items:
        for mark in ("slow", "timed"):
            if item.get_closest_marker(mark) is not None and not _has(item.path, mark):
                raise pytest.UsageError(f"{item.path} has to name mark.{mark}, or `make test-slow` leaves it out.")
        place = item.path.relative_to(TESTS).as_posix()
        if item.get_closest_marker("slow") is None and place.startswith(CONTRACT):
            item.add_marker(pytest.mark.contract)
        if item.get_closest_marker("slow") is None and place.startswith(POSTGRES) and "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)
            if place in CELLS:
                item.add_marker(pytest.mark.cells)


def _administer(dsn: str, *statements: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()


@pytest.fixture(scope="session")
def administer() -> Callable[..., None]:
    """`administer(dsn, *statements)` runs each statement in its own transaction, over a separate connection."""
    return _administer


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of the server, for a superuser."""
    given = os.environ.get("MAILSVC_TEST_DATABASE")
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-test-", dir=in_memory()))
    folder.chmod(0o711)  # run by root, the server uses another user
    server = EmbeddedPostgres.at(folder / "postgres", QUICK)
    try:
        yield server.start_blocking()
    finally:
        server.stop_blocking()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def template(postgres: str) -> Iterator[str]:
    """The name of a database with the schema and today's partitions."""
    name = f"mailsvc_template_{os.getpid()}"
    _administer(postgres, f"CREATE DATABASE {name}")
    dsn, citus = make_dsn(postgres, dbname=name), is_citus(postgres)
    if citus:
        dsn = create_cell(_administer, dsn)
    migrate(dsn)
    _administer(
        through_citus(dsn, CELL) if citus else dsn,
        *(statement for day in days(datetime.now(UTC), days_ahead=1) for both in day.values() for statement in both),
    )
    if citus:
        close(_administer, postgres, name)
    yield name
    _drop(postgres, name)


def _drop(postgres: str, name: str) -> None:
    """Postgres waits five seconds for the sessions that it ends. Citus can begin a new one meanwhile, so it is tried three times."""
    drop = f"DROP DATABASE {name} WITH (FORCE)"
    for _ in range(2):
        with suppress(ObjectInUse):
            _administer(postgres, drop)
            return
    _administer(postgres, drop)


@contextmanager
def _fresh(postgres: str, template: str) -> Iterator[str]:
    name = f"mailsvc_test_{os.getpid()}_{next(_numbers)}"
    _administer(postgres, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")  # a third faster than WAL_LOG here
    dsn = make_dsn(postgres, dbname=name)
    yield directly(dsn, CELL) if is_citus(postgres) else dsn
    _drop(postgres, name)


@pytest.fixture
def database(postgres: str, template: str) -> Iterator[str]:
    """The DSN of a new migrated database."""
    with _fresh(postgres, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(postgres: str, template: str) -> Iterator[str]:
    """The DSN of a new migrated database, shared by all tests of a module."""
    with _fresh(postgres, template) as dsn:
        yield dsn


@pytest_twisted.async_yield_fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    """A pool of four connections."""
    from twisted.internet import reactor

    pool = Pool(database, reactor, size=4, name="mailsvc tests")
    await pool.start()
    yield pool
    await pool.stop()
