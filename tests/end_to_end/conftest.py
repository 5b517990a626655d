"""What whole tests share: a mail server, a DNS server, a second database, a browser, and a check at the end, however the daemons ended.

Then each recipient has one state, and what waits says why and until when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, Page
from psycopg2.extensions import make_dsn, parse_dsn

from mailsvc.store.postgres.partitions import days
from tests.chaos.citus_nodes import missing
from tests.citus import is_citus
from tests.end_to_end import chromium
from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon, check_invariants, free_port
from tests.end_to_end.sink import Sink

_DAYS = 3  # that the template has already


@pytest.fixture(scope="session")
def template(postgres: str, template: str, administer: Callable[..., None]) -> Iterator[str]:
    """With the partitions of all days that a daemon creates when it starts: copying them is faster."""
    if is_citus(postgres):
        yield template
        return
    name = f"{template}_days"
    administer(postgres, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    every_day = days(datetime.now(UTC))
    wanted = (statement for day in every_day[_DAYS:] for both in day.values() for statement in both)
    administer(make_dsn(postgres, dbname=name), *wanted)
    yield name
    administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(database: str) -> Iterator[str]:
    yield database
    check_invariants(database)


@pytest.fixture(scope="module")
def module_database(module_database: str) -> Iterator[str]:
    yield module_database
    check_invariants(module_database)


@pytest.fixture
def create_database(database: str, postgres: str, administer: Callable[..., None]) -> Iterator[Callable[[str], str]]:
    """Creates other databases on the same server, without tables. The argument is the end of the name."""
    created: list[str] = []

    def create(ending: str) -> str:
        name = f"{parse_dsn(database)['dbname']}_{ending}"
        administer(postgres, f"CREATE DATABASE {name}")
        created.append(name)
        return make_dsn(database, dbname=name)

    yield create
    for name in created:
        administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def second_database(create_database: Callable[[str], str]) -> str:
    return create_database("second")


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    """A mail server for all tests of a module."""
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    """A DNS server for all tests of a module."""
    names = Names(tmp_path_factory.mktemp("names") / "zones.json")
    names.start()
    yield names
    names.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, daemon: Daemon) -> Iterator[Page]:
    """A separate browser for the daemon of the test's module. Script errors, dialogs, policy violations and 5xx responses fail the test."""
    context = browser.new_context(base_url=f"http://localhost:{daemon.port}", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(10_000)
    page = context.new_page()
    wrong: list[str] = []
    page.add_init_script(chromium.POLICY)
    page.on("console", lambda message: wrong.append(message.text) if message.text.startswith("policy ") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}") or dialog.dismiss())
    page.on("response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None)
    yield page
    context.close()
    assert not wrong


@pytest.fixture
def citus(postgres: str) -> None:
    """The server of the tests has Citus, so that a cluster can be started beside it."""
    if not is_citus(postgres):
        pytest.skip("The server of the tests does not have Citus. See .ci/run.")
    assert missing() is None
