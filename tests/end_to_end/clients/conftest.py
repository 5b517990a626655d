"""Shared by the tests of client libraries: the Python library set to a daemon."""

from __future__ import annotations

import pytest
import resend

from tests.end_to_end.rig import Daemon


@pytest.fixture
def library(daemon: Daemon, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python library calls the module's `daemon` with its `key`."""
    monkeypatch.setattr(resend, "api_url", f"http://127.0.0.1:{daemon.port}")
    monkeypatch.setattr(resend, "api_key", key)
