"""Answers kept in memory for at most two seconds, and dropped at once when somebody says that they changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from mailsvc.store.postgres.notifications import Notifier

KEPT = 2.0
MOST = 10_000  # answers; what is not there is kept too, so anybody could fill it

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

CHANNEL = "keys"  # of notifications: an API key, account or domain has changed


class Cache(Generic[Key, Value]):
    """`clock` tells seconds. An answer is as old as the question that brought it; who asks the same meanwhile waits for that."""

    def __init__(self, clock: Any, notifications: Notifier | None = None) -> None:
        self._clock = clock
        self._notifications = notifications
        self._answers: dict[Key, tuple[float, Value]] = {}
        self._asked: dict[Key, list[Deferred[Value]]] = {}  # who waits for an answer that is under way
        self._changes = 0
        if notifications is not None:
            notifications.listen(CHANNEL, self.drop)

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        now = self._clock.seconds()
        known = self._answers.get(key)
        if known is not None and 0 <= now - known[0] < KEPT:
            return known[1]
        mine: Deferred[Value] = Deferred()
        waiting = self._asked.get(key)
        if waiting is not None:
            waiting.append(mine)
        else:
            self._asked[key] = [mine]
            Deferred.fromCoroutine(self._ask(key, load, self._asked[key], now))
        return await mine

    async def _ask(self, key: Key, load: Callable[[], Awaitable[Value]], waiting: list[Deferred[Value]], now: float) -> None:
        changes = self._changes
        try:
            value = await load()
        except Exception as error:
            self._asked_no_more(key, waiting)
            for each in [each for each in waiting if not each.called]:  # whoever left was told so
                each.errback(error)
            return
        self._asked_no_more(key, waiting)
        if changes == self._changes:  # else it may be from before the change
            if len(self._answers) >= MOST:
                self._answers.clear()
            self._answers[key] = (now, value)
        for each in [each for each in waiting if not each.called]:
            each.callback(value)

    def _asked_no_more(self, key: Key, waiting: list[Deferred[Value]]) -> None:
        if self._asked.get(key) is waiting:
            del self._asked[key]

    def changed(self) -> None:
        """Drop everything, here and in all other processes."""
        self.drop()
        if self._notifications is not None:
            self._notifications.notify(CHANNEL)

    def drop(self) -> None:
        self._changes += 1
        self._answers.clear()
        self._asked.clear()  # who asked before gets the answer from before; who asks from now on asks anew
