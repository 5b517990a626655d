"""No conversation outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.smtp.harness import Call


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    while Call.all:
        Call.all.pop().hang_up()
