"""Counts of single emails, from their events, are those of the hourly counts."""

from __future__ import annotations

import attrs
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.store.events.rollups import Rollups, Wanted
from mailsvc.store.events.suppressions import Suppressions
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, StoreRig, email


@pytest_twisted.ensureDeferred
async def test_suppressed_recipients_do_not_count_as_sent(store: StoreRig) -> None:
    clock = Clock()
    clock.advance(NOW.timestamp())
    await Suppressions(store.pool, clock).add(ACCOUNT, ["a@example.org"])
    recipients = ("a@example.org", "b@example.org", "c@example.org")
    now, scheduled = email(*recipients), email(*recipients, scheduled_at=NOW)
    await store.accept(now, scheduled)
    await store.queue.release_scheduled(NOW + MINUTE)
    await store.ledger.number(1000)
    wanted = Wanted(NOW - DAY, NOW + DAY, "day", "UTC", ("email.sent", "email.suppressed"))
    for each in (wanted, attrs.evolve(wanted, emails=[now.email_id, scheduled.email_id])):
        counts = await Rollups(store.pool).counts(ACCOUNT, each)
        assert {count.type: count.count for count in counts if count.type in wanted.types} == {"email.sent": 4, "email.suppressed": 2}
