"""What whole tests share: a mail server, a browser, and a check at the end, however the daemons ended.

Then each recipient has one state, and what waits says why and until when.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.end_to_end import chromium
from tests.end_to_end.rig import check_invariants, free_port
from tests.end_to_end.sink import Sink


@pytest.fixture
def database(database: str) -> Iterator[str]:
    yield database
    check_invariants(database)


@pytest.fixture(scope="module")
def module_database(module_database: str) -> Iterator[str]:
    yield module_database
    check_invariants(module_database)


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    """A mail server for all tests of a module."""
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started() as browser:
        yield browser
