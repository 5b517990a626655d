"""Values are cached for two seconds, and concurrent requests share a query."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mailsvc.store.cache import MAX_AGE, Cache


class Asked:
    """A cache and its loader: `answers` has a Deferred for each query."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cache: Cache[str, int] = Cache(self.clock)
        self.answers: list[Deferred[int]] = []
        self.told: list[Any] = []

    def ask(self, key: str = "key") -> Deferred[int]:
        def load() -> Deferred[int]:
            self.answers.append(Deferred())
            return self.answers[-1]

        asked = Deferred.fromCoroutine(self.cache.get(key, load))
        asked.addBoth(lambda result: self.told.append(getattr(result, "value", result)))
        return asked


def test_concurrent_requests_for_a_key_share_one_query() -> None:
    asked = Asked()
    for _ in range(3):
        asked.ask()
    asked.ask("other")
    assert len(asked.answers) == 2
    asked.answers[0].callback(1)
    assert asked.told == [1, 1, 1]
    asked.ask()
    assert asked.told == [1, 1, 1, 1] and len(asked.answers) == 2
    asked.clock.advance(MAX_AGE)
    asked.ask()
    assert len(asked.answers) == 3


def test_requests_after_a_change_never_get_an_older_value() -> None:
    asked = Asked()
    asked.ask()
    asked.cache.changed()
    asked.ask()
    assert len(asked.answers) == 2
    asked.answers[1].callback(2)
    asked.answers[0].callback(1)
    assert asked.told == [2, 1]
    asked.ask()
    assert asked.told == [2, 1, 2]


def test_errors_reach_all_waiters_and_are_not_cached() -> None:
    asked = Asked()
    error = ValueError()
    asked.ask()
    asked.ask()
    asked.answers[0].errback(error)
    assert asked.told == [error, error]
    asked.ask()
    assert len(asked.answers) == 2


def test_a_cancelled_waiter_does_not_affect_the_others() -> None:
    asked = Asked()
    first = asked.ask()
    asked.ask()
    first.cancel()
    assert isinstance(asked.told[0], CancelledError)
    asked.answers[0].callback(1)
    assert asked.told[1:] == [1]
