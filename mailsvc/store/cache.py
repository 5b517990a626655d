"""A cache of query results: kept for a short time (two seconds unless stated), and dropped as soon as a change is notified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from mailsvc.store.postgres.notifications import Notifier

MAX_AGE = 2.0  # seconds
MAX_ENTRIES = 10_000  # negative results are cached too, so a client could fill the cache

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

CHANNEL = "keys"  # of notifications: an API key, account or domain has changed


class Cache(Generic[Key, Value]):
    """`clock` has seconds(). The age of a value counts from when its query began; concurrent requests for a key share one query."""

    def __init__(self, clock: Any, notifications: Notifier | None = None, *, max_age: float = MAX_AGE, entries: int = MAX_ENTRIES) -> None:
        self._clock, self._max_age, self._entries = clock, max_age, entries
        self._notifications = notifications
        self._values: dict[Key, tuple[float, Value]] = {}
        self._waiting: dict[Key, list[Deferred[Value]]] = {}  # those waiting for a query under way
        self._changes = 0
        if notifications is not None:
            notifications.listen(CHANNEL, self.drop)

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        now = self._clock.seconds()
        known = self._values.get(key)
        if known is not None and 0 <= now - known[0] < self._max_age:
            return known[1]
        mine: Deferred[Value] = Deferred()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(mine)
        else:
            self._waiting[key] = [mine]
            Deferred.fromCoroutine(self._query(key, load, self._waiting[key], now))
        return await mine

    def known(self, key: Key) -> Value | None:
        """What is cached, without a query."""
        known = self._values.get(key)
        return known[1] if known is not None and 0 <= self._clock.seconds() - known[0] < self._max_age else None

    async def _query(self, key: Key, load: Callable[[], Awaitable[Value]], waiting: list[Deferred[Value]], now: float) -> None:
        changes = self._changes
        try:
            value = await load()
        except Exception as error:
            self._query_ended(key, waiting)
            for each in [each for each in waiting if not each.called]:  # the others were cancelled
                each.errback(error)
            return
        self._query_ended(key, waiting)
        if changes == self._changes:  # otherwise the value may be outdated
            if len(self._values) > self._entries - 1:
                self._values.clear()
            self._values[key] = (now, value)
        for each in [each for each in waiting if not each.called]:
            each.callback(value)

    def _query_ended(self, key: Key, waiting: list[Deferred[Value]]) -> None:
        if self._waiting.get(key) is waiting:
            del self._waiting[key]

    def changed(self) -> None:
        """Drop everything, in this and all other processes."""
        self.drop()
        if self._notifications is not None:
            self._notifications.notify(CHANNEL)

    def drop(self) -> None:
        self._changes += 1
        self._values.clear()
        self._waiting.clear()  # earlier requests get the earlier value, later ones start a new query
