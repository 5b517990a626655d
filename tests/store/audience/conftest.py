"""An account with an audience."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.store.audience.rig import Audience


@pytest_twisted.async_fixture
async def audience(pool: Pool) -> Audience:
    return await Audience.of(pool)
