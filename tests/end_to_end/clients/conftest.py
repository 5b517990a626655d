"""Shared by the tests of client libraries: DNS of their own, and the Python library set to a daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import resend

from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    names = Names(tmp_path_factory.mktemp("names") / "zones.json")
    names.start()
    yield names
    names.stop()


@pytest.fixture
def library(daemon: Daemon, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python library calls the module's `daemon` with its `key`."""
    monkeypatch.setattr(resend, "api_url", f"http://127.0.0.1:{daemon.port}")
    monkeypatch.setattr(resend, "api_key", key)
