"""Pauses between failed attempts: each twice as long as the one before, with jitter so that many clients do not retry at once."""

from __future__ import annotations

import random
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater


@attrs.define(eq=False)
class Backoff:
    clock: Any
    first: float = 0.05
    longest: float = 5.0
    _next: float = attrs.field(init=False, default=0.0)
    _sleeping: Deferred[None] | None = attrs.field(init=False, default=None)

    @property
    def upcoming(self) -> float:
        """The next pause, without jitter."""
        return self._next or self.first

    def reset(self) -> None:
        self._next = self.first

    async def pause(self) -> None:
        seconds = self.upcoming
        self._next = min(seconds * 2, self.longest)
        self._sleeping = deferLater(self.clock, seconds * random.uniform(0.8, 1.2))  # noqa: S311  not a secret
        try:
            await self._sleeping
        except CancelledError:
            pass
        finally:
            self._sleeping = None

    def wake(self) -> None:
        """End the current pause."""
        if self._sleeping is not None:
            self._sleeping.cancel()
