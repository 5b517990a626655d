"""Domains over a fresh database and a DNS server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.domains.rig import Rig


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor)
    yield rig
    await rig.dns.stop()
