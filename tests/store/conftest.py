"""All tables of a fresh database. After each test every waiting recipient must have a reason and a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import NOW, House


@pytest_twisted.async_yield_fixture
async def house(pool: Pool) -> AsyncIterator[House]:
    from twisted.internet import reactor

    house = House(pool, reactor)
    house.lease = await house.process()
    yield house
    assert await house.queue.unexplained(NOW) == 0
