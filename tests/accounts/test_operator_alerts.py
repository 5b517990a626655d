"""Emails to the operator about source addresses on block lists: once for each event, with what to do, and not too many."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.operator_alerts import LATELY, MOST, OperatorAlerts
from mailsvc.accounts.usage import Accounting
from mailsvc.settings.abuse import Abuse
from mailsvc.settings.plans import Plans
from mailsvc.store.people.operator_alerts import AlertStore
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import SourceTable
from tests.accounts.test_usage import Mail
from tests.store.fixtures import together

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
OPERATOR = "operator@example.net"
HOUR = timedelta(hours=1)


class Place:
    """Two processes that mail the operator, and the sources of a region."""

    def __init__(self, pool: Pool, to: str | None = OPERATOR) -> None:
        self.clock, self.mail, self.table = Clock(), Mail(), SourceTable(pool, "eu")
        self.clock.advance(NOW.timestamp())
        self.processes = [OperatorAlerts(AlertStore(pool), self.mail, self.clock, to) for _ in range(2)]
        self.addresses: list[tuple[str, str, date | None]] = []

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    async def listed(self, lists: dict[str, list[str]], after: timedelta = timedelta()) -> list[Any]:
        """What both processes mail once the block lists have these addresses."""
        self.clock.advance(after.total_seconds())
        self.addresses = [(address, "bulk", None) for address in {*lists, *(address for address, _, _ in self.addresses)}]
        await self.table.announce(self.addresses, self.now)
        for address, zones in lists.items():
            await self.table.checked(address, zones, self.now, complete=True)
        before = len(self.mail.sent)
        for _ in range(2):
            await together(*(process.send_due() for process in self.processes))
        return [*self.mail.sent.values()][before:]


@pytest_twisted.ensureDeferred
async def test_a_listed_address_is_mailed_once_with_what_to_do(pool: Pool) -> None:
    place = Place(pool)
    assert await place.listed({"198.51.99.7": [], "198.51.99.8": []}) == []
    [(to, subject, text)] = await place.listed({"198.51.99.7": ["zen.spamhaus.org", "list.example"]})
    assert (to, subject) == (OPERATOR, "198.51.99.7 is on a block list")
    assert "(region eu, pool bulk)" in text and "found at 2026-11-21 12:30 UTC" in text
    for remedy in ("https://check.spamhaus.org/", "list.example", "Request removal", "mailsvc sources list"):
        assert remedy in text
    assert await place.listed({"198.51.99.7": ["zen.spamhaus.org"]}, HOUR) == [], "still listed"
    assert await place.listed({"198.51.99.7": []}, HOUR) == []
    assert await place.listed({"198.51.99.7": ["zen.spamhaus.org"]}, HOUR) == [], "at most once a day"
    assert await place.listed({"198.51.99.7": []}, HOUR) == []
    assert len(await place.listed({"198.51.99.7": ["zen.spamhaus.org"]}, timedelta(days=1))) == 1


@pytest_twisted.ensureDeferred
async def test_a_new_process_does_not_repeat_it(pool: Pool) -> None:
    place = Place(pool)
    assert len(await place.listed({"198.51.99.7": ["list.example"]})) == 1
    later = Place(pool)  # its mail system has forgotten the keys
    assert await later.listed({"198.51.99.7": ["list.example"]}, LATELY + HOUR) == []


@pytest_twisted.ensureDeferred
async def test_it_is_mailed_later_if_it_cannot_be_sent_now(pool: Pool) -> None:
    place = Place(pool)
    place.mail.busy = True
    assert await place.listed({"198.51.99.7": ["list.example"]}) == []
    place.mail.busy = False
    assert len(await place.listed({}, HOUR)) == 1


@pytest_twisted.ensureDeferred
async def test_many_listings_are_not_many_mails(pool: Pool) -> None:
    place = Place(pool)
    sent = await place.listed({f"198.51.99.{number}": ["list.example"] for number in range(MOST + 5)})
    assert len(sent) == MOST
    assert await place.listed({}, HOUR) == []


@pytest_twisted.ensureDeferred
async def test_an_address_that_is_no_longer_used_is_not_reported(pool: Pool) -> None:
    place = Place(pool)
    await place.table.announce([("198.51.99.7", "", None)], NOW - HOUR)
    await place.table.checked("198.51.99.7", ["list.example"], NOW - HOUR, complete=True)
    assert await place.listed({}) == []


@pytest_twisted.ensureDeferred
async def test_without_an_address_nothing_is_mailed(pool: Pool) -> None:
    assert await Place(pool, None).listed({"198.51.99.7": ["list.example"]}) == []


@pytest_twisted.ensureDeferred
async def test_the_address_is_a_setting(pool: Pool) -> None:
    def to(rules: Abuse) -> str | None:
        return Accounting.of(pool, Clock(), Plans(), Mail(), rules, "postmaster@example.net").alerts.to

    assert (to(Abuse()), to(Abuse(notify=OPERATOR))) == ("postmaster@example.net", OPERATOR)
