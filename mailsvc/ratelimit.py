"""How many requests a caller may make: fixed windows of one second, and the headers that tell of them.

One live process counts in memory alone. With several, each takes blocks of an account's limit from a shared count
(`LeaseBlock`), so that together they stay within it. Callers without a key count by client address, per process.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

import attrs
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from mailsvc.clock import unix

log = Logger()

CALLERS_MAX = 100_000  # counted apart within one window; what comes on top shares one count


@attrs.frozen
class Block:
    """A part of an account's limit for one window: `granted` to this process, `left` for whoever asks next."""

    granted: int
    left: int


# (account, unix second of the window, the account's limit, wanted) → what was granted
LeaseBlock = Callable[[UUID, int, int, int], Awaitable[Block]]


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
    """One caller in one window. `mine` is what this process may still give out, `left` what others may still take."""

    mine: int
    left: int
    leasing: DeferredLock = attrs.field(factory=DeferredLock)  # one block at a time


@attrs.define(eq=False)
class RateLimit:
    """`default` requests a second for each account without a limit of its own, and for each address without a key."""

    clock: Clock
    default: int
    lease_block: LeaseBlock | None = None
    alone: Callable[[], bool] = lambda: True
    _window: int = 0
    _counts: dict[UUID | str, _Count] = attrs.field(factory=dict)

    def peek(self, who: UUID | str, limit: int | None = None) -> Quota:
        """What the headers say to a request that is not counted."""
        limit = limit or self.default
        count = self._count(who, limit)
        return Quota(limit, count.mine + count.left, self._reset())

    def take(self, who: UUID | str, limit: int | None = None) -> Quota:
        """Count one request against this process alone."""
        limit = limit or self.default
        return self._take(self._count(who, limit), limit)

    async def take_shared(self, account_id: UUID, limit: int | None = None) -> Quota:
        """Count one request of an account against the limit that all processes share."""
        limit = limit or self.default
        if self.lease_block is None or self.alone():
            return self._take(self._count(account_id, limit), limit)
        count = self._count(account_id, limit, shared=True)
        if count.mine > 0 or count.left == 0:
            return self._take(count, limit)
        async with count.leasing:
            if count.mine == 0 and count.left > 0:
                await self._lease(self.lease_block, account_id, limit, count)
            return self._take(count, limit)

    async def _lease(self, lease_block: LeaseBlock, account_id: UUID, limit: int, count: _Count) -> None:
        try:
            block = await lease_block(account_id, self._window, limit, max(1, limit // 5))
        except Exception:
            # Better a request too many than none: the shared count is away, each process counts for itself.
            log.failure("no shared request count; this process counts for itself")
            count.mine, count.left = limit, 0
            return
        count.mine += block.granted
        count.left = block.left

    def _take(self, count: _Count, limit: int) -> Quota:
        if count.mine <= 0:
            return Quota(limit, 0, self._reset(), allowed=False)
        count.mine -= 1
        return Quota(limit, count.mine + count.left, self._reset())

    def _count(self, who: UUID | str, limit: int, *, shared: bool = False) -> _Count:
        window = math.floor(unix(self.clock))
        if window != self._window:
            self._window, self._counts = window, {}
        count = self._counts.get(who)
        if count is None:
            if len(self._counts) >= CALLERS_MAX:
                who = "*"
            count = self._counts.setdefault(who, _Count(0, limit) if shared else _Count(limit, 0))
        return count

    def _reset(self) -> int:
        """Whole seconds until the window ends; the window is one second long."""
        return 1
