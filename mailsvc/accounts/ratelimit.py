"""Rate limits for requests: fixed windows of one second, and their response headers.

A single process counts in memory. With several processes, each request of an account is counted in Postgres (`LeaseBlock`), so the limit is
exact. Requests that arrive during such a query share the next one. Requests without an API key are counted by client address in
each process.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.clock import unix

log = Logger()

CALLERS_MAX = 100_000  # counted separately in one window; all others share one count


@attrs.frozen
class Block:
    """Result of the shared count: `granted` requests are within the limit, and `left` more in this `second`."""

    granted: int
    left: int
    second: int


# (account, its limit, number of requests) → how many are within the limit
LeaseBlock = Callable[[UUID, int, int], Awaitable[Block]]


class Clock(Protocol):
    def seconds(self) -> float: ...


@attrs.frozen
class Quota:
    """The values of the response headers. `allowed`: whether the request was within the limit."""

    limit: int
    remaining: int
    reset: int
    allowed: bool = True

    def lines(self) -> bytes:
        """Header lines: plain integers for client libraries, and structured fields (RateLimit header fields, draft 10 §3 and §4)."""
        return _LINES % (self.limit, self.remaining, self.reset, self.limit, self.remaining, self.reset)


_LINES = (
    b"ratelimit-limit: %d\r\nratelimit-remaining: %d\r\nratelimit-reset: %d\r\n"
    b'ratelimit-policy: "default";q=%d;w=1\r\nratelimit: "default";r=%d;t=%d\r\n'
)


@attrs.define(eq=False)
class _Count:
    """One caller in one window: the requests left. `unavailable`: the shared count could not be queried."""

    left: int
    unavailable: bool = False


@attrs.define(eq=False)
class RateLimit:
    """`default`: requests per second for accounts without their own limit, and for addresses without an API key."""

    clock: Clock
    default: int
    lease_block: LeaseBlock | None = None
    alone: Callable[[], bool] = lambda: True
    _window: int = 0
    _counts: dict[UUID | str, _Count] = attrs.field(factory=dict)
    _waiting: dict[UUID, list[Deferred[Quota]]] = attrs.field(factory=dict)  # requests waiting for the shared count, by account

    def peek(self, who: UUID | str) -> Quota:
        """The header values for a request that is not counted."""
        return Quota(self.default, self._count(who, self.default).left, self._reset())

    def take(self, who: UUID | str, limit: int | None = None) -> Quota:
        """Count a request in this process only."""
        limit = limit or self.default
        return self._take(self._count(who, limit), limit)

    async def take_shared(self, account_id: UUID, limit: int | None = None) -> Quota:
        """Count a request of an account against the limit shared by all processes."""
        limit = limit or self.default
        if self.lease_block is None or self.alone():
            return self._take(self._count(account_id, limit), limit)
        count = self._count(account_id, limit)
        if count.unavailable or count.left <= 0:
            return self._take(count, limit)
        place: Deferred[Quota] = Deferred()
        leasing = account_id in self._waiting
        self._waiting.setdefault(account_id, []).append(place)
        if not leasing:
            Deferred.fromCoroutine(self._lease(self.lease_block, account_id, limit)).addErrback(self._failed)
        return await place

    async def _lease(self, lease_block: LeaseBlock, account_id: UUID, limit: int) -> None:
        """Resolve all waiting requests of this account, including those that arrive meanwhile."""
        while self._waiting[account_id]:
            batch, self._waiting[account_id] = self._waiting[account_id], []
            try:
                block = await lease_block(account_id, limit, len(batch))
            except Exception:
                # Accepting too many requests is better than rejecting all of them.
                log.failure("the shared request count is unavailable, this process counts on its own")
                count = self._count(account_id, limit)
                count.unavailable = True
                answers = [self._take(count, limit) for _ in batch]
            else:
                self._learn(account_id, limit, block)
                answers = [
                    Quota(limit, max(0, block.left + block.granted - 1 - n), self._reset(), allowed=n < block.granted)
                    for n in range(len(batch))
                ]
            for place, answer in zip(batch, answers, strict=True):
                if not place.called:
                    place.callback(answer)
        del self._waiting[account_id]

    def _learn(self, account_id: UUID, limit: int, block: Block) -> None:
        """Remember what is left, so that rejections in the rest of this second need no query."""
        count = self._count(account_id, limit)
        if block.second == self._window:
            count.left = block.left

    def _failed(self, failure: Failure) -> None:
        log.failure("the shared request count failed", failure=failure)

    def _take(self, count: _Count, limit: int) -> Quota:
        if count.left <= 0:
            return Quota(limit, 0, self._reset(), allowed=False)
        count.left -= 1
        return Quota(limit, count.left, self._reset())

    def _count(self, who: UUID | str, limit: int) -> _Count:
        window = math.floor(unix(self.clock))
        if window != self._window:
            self._window, self._counts = window, {}
        count = self._counts.get(who)
        if count is None:
            if len(self._counts) >= CALLERS_MAX:
                who = "*"
            count = self._counts.setdefault(who, _Count(limit))
        return count

    def _reset(self) -> int:
        """Seconds until the window ends, rounded up."""
        return 1
