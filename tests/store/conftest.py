"""All tables of a fresh database. After each test every waiting recipient must have a reason and a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import NOW, StoreRig


@pytest_twisted.async_yield_fixture
async def store(pool: Pool) -> AsyncIterator[StoreRig]:
    from twisted.internet import reactor

    store = StoreRig(pool, reactor)
    store.lease = await store.process()
    yield store
    assert await store.queue.unexplained(NOW) == 0
