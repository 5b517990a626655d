"""Disconnects all clients after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.smtp.harness import Client


@pytest.fixture(autouse=True)
def _disconnect() -> Iterator[None]:
    yield
    while Client.all:
        Client.all.pop().disconnect()
