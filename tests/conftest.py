"""One Postgres for the whole run, and for each test that asks a database of its own with the schema in it.

`MAILSVC_TEST_DATABASE` (a URL or conninfo of a superuser) names a server to use instead of the embedded one.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg2
import pytest
import pytest_twisted
from hypothesis import settings
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.partitions import days
from mailsvc.store.postgres.pool import Pool

_numbers = itertools.count(1)
QUICK = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}  # what is kept here is thrown away


settings.register_profile("mailsvc", deadline=None)  # how long an example takes says more about the machine than about us
settings.load_profile("mailsvc")

# What customers and operators build on, and what depends on the version of Python or of Postgres.
CONTRACT = (
    "store", "events", "mail", "http", "cli",
    "end_to_end/clients/test_python_client.py", "end_to_end/test_start.py", "end_to_end/relay/test_relay.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the contract, a part of the suite that is run on every Python, and what needs Postgres."""
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        if item.get_closest_marker("slow") is None and place.startswith(CONTRACT):
            item.add_marker(pytest.mark.contract)
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)


def _administer(dsn: str, *statements: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()


@pytest.fixture(scope="session")
def administer() -> Callable[..., None]:
    """Run statements, each its own transaction, over a connection of its own: `administer(dsn, *statements)`."""
    return _administer


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """How to reach the server, as a superuser."""
    given = os.environ.get("MAILSVC_TEST_DATABASE")
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-test-"))
    folder.chmod(0o711)  # as root the server runs as somebody else
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
    migrate(make_dsn(postgres, dbname=name))
    _administer(
        make_dsn(postgres, dbname=name), *(statement for day in days(datetime.now(UTC), days_ahead=1) for statement in day.values())
    )
    yield name
    _administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _fresh(postgres: str, template: str) -> Iterator[str]:
    name = f"mailsvc_test_{os.getpid()}_{next(_numbers)}"
    _administer(postgres, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield make_dsn(postgres, dbname=name)
    _administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres: str, template: str) -> Iterator[str]:
    """How to reach a fresh database with the schema in it."""
    with _fresh(postgres, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(postgres: str, template: str) -> Iterator[str]:
    """The same, one for all tests of a module."""
    with _fresh(postgres, template) as dsn:
        yield dsn


@pytest_twisted.async_yield_fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    """Four connections to it."""
    from twisted.internet import reactor

    pool = Pool(database, reactor, size=4, name="mailsvc tests")
    await pool.start()
    yield pool
    await pool.stop()
