"""The number of connections for an endpoint, with simulated servers on a test clock."""

from __future__ import annotations

from uuid import UUID

from twisted.internet.defer import Deferred

from mailsvc.net.fetch import FetchError, Reply
from mailsvc.webhooks.concurrency import REMEMBERED, Concurrency
from tests.webhooks.test_sender import Rig, Row

ONE = UUID(int=1)


class Slow(Rig):
    """Endpoints that answer after `seconds[url]`; one in `workers` has only so many requests served at once."""

    def __init__(self, **limits: object) -> None:
        super().__init__(**limits)
        self.seconds: dict[str, float] = {}
        self.workers: dict[str, int] = {}
        self.free: dict[str, list[float]] = {}
        self.added = 0

    def add(self, count: int, url: str, webhook: int) -> None:
        """Ids that are not used again, unlike the base class's, which counts the rows that are left."""
        for _ in range(count):
            self.added += 1
            self.rows[UUID(int=(webhook << 64) + self.added)] = Row(UUID(int=webhook), url, 0, self.now)

    async def fetch(self, method: str, url: str, *, seconds: float, **more: object) -> Reply:  # type: ignore[override]
        now = self.clock.seconds()
        begins = now
        if url in self.workers:
            free = self.free.setdefault(url, [now] * self.workers[url])
            first = min(range(len(free)), key=free.__getitem__)
            begins = max(now, free[first])
            free[first] = begins + self.seconds[url]
        answered: Deferred[None] = Deferred()
        self.clock.callLater(min(seconds, begins - now + self.seconds.get(url, 0.0)), answered.callback, None)
        self.open[url] += 1
        self.most[url] = max(self.most[url], self.open[url])
        await answered
        self.open[url] -= 1
        if begins - now + self.seconds.get(url, 0.0) > seconds:
            raise FetchError("There was no complete response within 15 s.")
        return await super().fetch(method, url, seconds=seconds, keep=1024)


def test_a_slow_endpoint_that_answers_well_gets_more_connections() -> None:
    """50 events a second for 60 s to an endpoint that takes 1 s for each: five connections needed ten minutes."""
    rig = Slow()
    rig.seconds["slow"] = 1.0
    rig.well = {ONE}
    rig.posts.startService()
    for _ in range(60):
        rig.add(50, "slow", 1)
        rig.ring()
        rig.run(1)
    rig.run(15)
    assert rig.rows == {}
    assert 40 <= rig.most["slow"] <= 50


def test_connections_stop_growing_where_the_endpoint_only_queues() -> None:
    rig = Slow()
    rig.seconds["narrow"], rig.workers["narrow"] = 0.5, 8
    rig.well = {ONE}
    rig.add(2000, "narrow", 1)
    rig.posts.startService()
    rig.run(100)
    assert rig.open["narrow"] <= 25
    assert all(posted.outcome == "success" for posted in rig.posted)
    assert len(rig.posted) > 100 / 0.5 * 8 * 0.8  # and it is kept busy


def test_wide_endpoints_leave_half_of_all_connections_to_others() -> None:
    rig = Slow(connections=60)
    for number in range(1, 5):
        rig.seconds[f"https://slow{number}/"] = 5.0
        rig.add(2000, f"https://slow{number}/", number)
    rig.well = {UUID(int=number) for number in range(1, 6)}
    rig.posts.startService()
    rig.run(60)
    assert rig.posts.open <= 4 * 5 + 30
    rig.add(5, "https://good/", 5)
    rig.ring()
    rig.run(0.1)
    assert len(rig.at("https://good/")) == 5


def test_a_failure_halves_and_never_goes_below_the_least() -> None:
    endpoints = Concurrency(5, 50)
    for _ in range(200):
        endpoints.answered(ONE, 0.1, 50)
    assert endpoints.limit(ONE) == 50
    endpoints.failed(ONE)
    assert endpoints.limit(ONE) == 25
    for _ in range(10):
        endpoints.failed(ONE)
    assert endpoints.limit(ONE) == 5


def test_an_endpoint_that_does_not_use_its_connections_gets_no_more() -> None:
    endpoints = Concurrency(5, 50)
    for _ in range(200):
        endpoints.answered(ONE, 0.1, 2)
    assert endpoints.limit(ONE) == 5


def test_only_so_many_endpoints_are_remembered() -> None:
    endpoints = Concurrency(5, 50)
    for number in range(REMEMBERED + 100):
        endpoints.failed(UUID(int=number))
    assert len(endpoints._endpoints) == REMEMBERED
