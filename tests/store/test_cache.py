"""Values are cached for two seconds, and concurrent requests share a query."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mailsvc.store.cache import MAX_AGE, Cache


class CacheRig:
    """A cache and its loader: `answers` has a Deferred for each query."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cache: Cache[str, int] = Cache(self.clock)
        self.answers: list[Deferred[int]] = []
        self.results: list[Any] = []

    def get(self, key: str = "key") -> Deferred[int]:
        def load() -> Deferred[int]:
            self.answers.append(Deferred())
            return self.answers[-1]

        rig = Deferred.fromCoroutine(self.cache.get(key, load))
        rig.addBoth(lambda result: self.results.append(getattr(result, "value", result)))
        return rig


def test_concurrent_requests_for_a_key_share_one_query() -> None:
    rig = CacheRig()
    for _ in range(3):
        rig.get()
    rig.get("other")
    assert len(rig.answers) == 2
    rig.answers[0].callback(1)
    assert rig.results == [1, 1, 1]
    rig.get()
    assert rig.results == [1, 1, 1, 1] and len(rig.answers) == 2
    rig.clock.advance(MAX_AGE)
    rig.get()
    assert len(rig.answers) == 3


def test_requests_after_a_change_never_get_an_older_value() -> None:
    rig = CacheRig()
    rig.get()
    rig.cache.changed()
    rig.get()
    assert len(rig.answers) == 2
    rig.answers[1].callback(2)
    rig.answers[0].callback(1)
    assert rig.results == [2, 1]
    rig.get()
    assert rig.results == [2, 1, 2]


def test_errors_reach_all_waiters_and_are_not_cached() -> None:
    rig = CacheRig()
    error = ValueError()
    rig.get()
    rig.get()
    rig.answers[0].errback(error)
    assert rig.results == [error, error]
    rig.get()
    assert len(rig.answers) == 2


def test_a_cancelled_waiter_does_not_affect_the_others() -> None:
    rig = CacheRig()
    first = rig.get()
    rig.get()
    first.cancel()
    assert isinstance(rig.results[0], CancelledError)
    rig.answers[0].callback(1)
    assert rig.results[1:] == [1]
