"""How many contacts, segments and broadcasts an account has."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.audience.figures import KEPT, AudienceFigures, AudienceSize
from tests.store.audience.rig import Audience


@pytest_twisted.ensureDeferred
async def test_they_are_counted_again_after_a_while(audience: Audience) -> None:
    figures = AudienceFigures(audience.pool, audience.clock)
    assert await figures.size(audience.account) == AudienceSize()
    await audience.segments.add(audience.account, "all")
    audience.clock.advance(KEPT - 0.1)
    assert await figures.size(audience.account) == AudienceSize()
    audience.clock.advance(0.1)
    assert await figures.size(audience.account) == AudienceSize(segments=1)
