"""Answers kept for two seconds, and questions that are asked once."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mailsvc.store.cache import MAX_AGE, Cache


class Asked:
    """A cache, and who loads for it: `answers` has a Deferred for each question."""

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


def test_who_asks_the_same_at_the_same_time_waits_for_one_answer() -> None:
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


def test_nobody_who_asks_after_a_change_gets_an_answer_from_before_it() -> None:
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


def test_an_error_is_told_to_all_and_not_kept() -> None:
    asked = Asked()
    error = ValueError()
    asked.ask()
    asked.ask()
    asked.answers[0].errback(error)
    assert asked.told == [error, error]
    asked.ask()
    assert len(asked.answers) == 2


def test_who_stops_waiting_takes_the_answer_from_nobody() -> None:
    asked = Asked()
    first = asked.ask()
    asked.ask()
    first.cancel()
    assert isinstance(asked.told[0], CancelledError)
    asked.answers[0].callback(1)
    assert asked.told[1:] == [1]
