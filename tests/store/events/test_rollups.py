"""Counts of single emails, from their events, are those of the hourly counts."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.store.events.rollups import USED, Rollups, TooManyCounts, Wanted
from mailsvc.store.events.suppressions import Suppressions
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, StoreRig, email, explain, nodes


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


@attrs.define
class ReadRows:
    """A pool that records how many rows each statement returned."""

    pool: Any
    read: list[int] = attrs.field(factory=list)

    async def rows(self, sql: str, params: Any) -> Any:
        rows = await self.pool.rows(sql, params)
        self.read.append(len(rows))
        return rows


@pytest_twisted.ensureDeferred
async def test_hours_by_domain_are_counted_before_they_are_read(store: StoreRig) -> None:
    """A refusal would otherwise take as long as the largest answer."""
    hour, domains = NOW.astimezone(UTC).replace(minute=0, second=0, microsecond=0), [UUID(int=n) for n in range(4)]
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) SELECT %s, %s, d, 'email.sent', 2 FROM unnest(%s) d"
    await store.pool.run(sql, (ACCOUNT, hour, domains))
    pool = ReadRows(store.pool)
    wanted = Wanted(hour, hour + DAY, "hour", "UTC", ("email.sent",), by_period=True, by_domain=True)
    with pytest.raises(TooManyCounts):
        await Rollups(pool).counts(ACCOUNT, wanted, 3)  # type: ignore[arg-type]
    assert pool.read == [1]
    for each, most, found in (
        (wanted, 4, 4),
        (attrs.evolve(wanted, domains=domains[:3]), 3, 3),
        (attrs.evolve(wanted, types=["email.failed"]), 3, 0),
        (attrs.evolve(wanted, end=hour), 3, 0),
        (attrs.evolve(wanted, by_domain=False), 3, 1),
        (attrs.evolve(wanted, unit="day"), 4, 4),
    ):
        assert len(await Rollups(store.pool).counts(ACCOUNT, each, most)) == found


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
async def test_the_hour_in_which_the_time_begins_counts(store: StoreRig, zone: timezone) -> None:
    hour = NOW.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, 'email.sent', %s)"
    for n, at in enumerate((hour - 60 * MINUTE, hour, hour + 60 * MINUTE)):
        await store.pool.run(sql, (ACCOUNT, at, UUID(int=1), 10**n))
    for start in (hour, hour + MINUTE, hour + 60 * MINUTE - timedelta(microseconds=1)):
        [count] = await Rollups(store.pool).counts(ACCOUNT, Wanted(start.astimezone(zone), hour + DAY, "day", "UTC", ("email.sent",)))
        assert count.count == 110


@pytest_twisted.ensureDeferred
async def test_what_was_sent_is_found_without_the_other_counts(store: StoreRig) -> None:
    types = ["email.sent", *(f"email.other{n}" for n in range(19))]
    hours = [NOW - 60 * MINUTE * n for n in range(48)]
    sql = (
        "INSERT INTO rollups (account_id, hour, domain_id, type, count) SELECT %s, h, d, t, 1 FROM unnest(%s) h, unnest(%s) d, unnest(%s) t"
    )
    await store.pool.run(sql, (ACCOUNT, hours, [UUID(int=n) for n in range(5)], types))
    await store.pool.run("ANALYZE rollups")
    plan = await explain(store, USED, {"account_id": ACCOUNT, "day": NOW - DAY, "month": NOW - 30 * DAY}, "SELECT")
    assert [node["Index Name"] for node in nodes(plan) if "Index Name" in node] == ["rollups_sent"]
    assert plan["Actual Rows"] == 1 and not any("Rows Removed by Filter" in node for node in nodes(plan))
