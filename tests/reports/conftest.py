"""Domains over a fresh database and a DNS server, with addresses for reports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_twisted

from mailsvc.domains.records import Publishing
from mailsvc.store.postgres.pool import Pool
from tests.domains.rig import HOSTS, Rig
from tests.reports.intake import SECRET


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor, Publishing(HOSTS, reports_secret=lambda: SECRET))
    yield rig
    await rig.dns.stop()
