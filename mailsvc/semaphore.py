"""A semaphore for coroutines, which calls those that wait in a loop.

However many wait, and however soon each is done, the stack does not grow: if one is done before it waits for anything, the loop calls the
next. Nobody overtakes those that wait.
"""

from __future__ import annotations

from typing import Self

from twisted.internet.defer import DeferredSemaphore  # noqa: TID251


class Semaphore(DeferredSemaphore):
    """At most `tokens` hold it at a time. With one token, it is a lock."""

    _calling = False
    _returned = 0  # tokens that were released while others were being called

    def release(self: Self) -> None:
        self._returned += 1
        if self._calling:  # by one of those that the loop below calls
            return
        self._calling = True
        try:
            while self._returned:
                self._returned -= 1
                if self.waiting:
                    self.waiting.pop(0).callback(self)
                else:
                    self.tokens += 1
        finally:
            self._calling = False
