"""How many requests a caller may make: fixed windows of one second, and the headers that tell of them.

One live process counts in memory alone. With several, each request of an account is counted in Postgres (`LeaseBlock`), so that the
limit is exact: no process holds requests that another could use. Requests that arrive while Postgres is asked share the next
statement. Callers without a key count by client address, per process.
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

CALLERS_MAX = 100_000  # counted apart within one window; what comes on top shares one count


@attrs.frozen
class Block:
    """The shared count's answer: `granted` requests are within the limit, `left` more would be in this `second`."""

    granted: int
    left: int
    second: int


# (account, the account's limit, requests) → how many of them are within the limit
LeaseBlock = Callable[[UUID, int, int], Awaitable[Block]]


class Clock(Protocol):
    def seconds(self) -> float: ...


@attrs.frozen
class Quota:
    """What the headers of one response say. `allowed`: whether the request itself was within the limit."""

    limit: int
    remaining: int
    reset: int
    allowed: bool = True

    def lines(self) -> bytes:
        """Plain integers for the libraries, structured fields for everyone else: RateLimit header fields, draft 10 §3 and §4."""
        return _LINES % (self.limit, self.remaining, self.reset, self.limit, self.remaining, self.reset)


_LINES = (
    b"ratelimit-limit: %d\r\nratelimit-remaining: %d\r\nratelimit-reset: %d\r\n"
    b'ratelimit-policy: "default";q=%d;w=1\r\nratelimit: "default";r=%d;t=%d\r\n'
)


@attrs.define(eq=False)
class _Count:
    """One caller in one window: how many requests are left. `away`: the shared count could not be asked."""

    left: int
    away: bool = False


@attrs.define(eq=False)
class RateLimit:
    """`default` requests a second for each account without a limit of its own, and for each address without a key."""

    clock: Clock
    default: int
    lease_block: LeaseBlock | None = None
    alone: Callable[[], bool] = lambda: True
    _window: int = 0
    _counts: dict[UUID | str, _Count] = attrs.field(factory=dict)
    _waiting: dict[UUID, list[Deferred[Quota]]] = attrs.field(factory=dict)  # of accounts whose shared count is being asked

    def peek(self, who: UUID | str, limit: int | None = None) -> Quota:
        """What the headers say to a request that is not counted."""
        limit = limit or self.default
        count = self._count(who, limit)
        return Quota(limit, count.left, self._reset())

    def take(self, who: UUID | str, limit: int | None = None) -> Quota:
        """Count one request against this process alone."""
        limit = limit or self.default
        return self._take(self._count(who, limit), limit)

    async def take_shared(self, account_id: UUID, limit: int | None = None) -> Quota:
        """Count one request of an account against the limit that all processes share."""
        limit = limit or self.default
        if self.lease_block is None or self.alone():
            return self._take(self._count(account_id, limit), limit)
        count = self._count(account_id, limit)
        if count.away or count.left <= 0:
            return self._take(count, limit)
        place: Deferred[Quota] = Deferred()
        asking = account_id in self._waiting
        self._waiting.setdefault(account_id, []).append(place)
        if not asking:
            Deferred.fromCoroutine(self._ask(self.lease_block, account_id, limit)).addErrback(self._failed)
        return await place

    async def _ask(self, lease_block: LeaseBlock, account_id: UUID, limit: int) -> None:
        """Answer all requests of this account that wait, and those that arrive meanwhile."""
        while self._waiting[account_id]:
            batch, self._waiting[account_id] = self._waiting[account_id], []
            try:
                block = await lease_block(account_id, limit, len(batch))
            except Exception:
                # Accepting one request too many is better than refusing all of them.
                log.failure("no shared request count; this process counts for itself")
                count = self._count(account_id, limit)
                count.away = True
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
        """What is refused for the rest of this second needs no asking."""
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
        """Whole seconds until the window ends; the window is one second long."""
        return 1
