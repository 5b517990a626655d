"""Limits how many bytes of mail strangers can have stored in a day, all together and each. Counts in memory, for this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import attrs

_DAY = 86_400  # seconds
_LEAST = 16 * 1024  # bytes that a mail counts at least: it takes rows, too


@attrs.define(eq=False)
class Allowance:
    """`most`: bytes of a day. A client may have as many as remain for everybody else, so that there is room for others whatever it sends.

    `seconds` returns Unix time.
    """

    most: int
    seconds: Callable[[], float]
    _day: int = attrs.field(default=0, init=False)
    _used: Counter[Hashable] = attrs.field(factory=Counter, init=False)

    def take(self, client: Hashable, size: int) -> bool:
        """Count a mail, unless it is too much for today."""
        size = max(size, _LEAST)
        today = int(self.seconds() // _DAY)
        if today != self._day:
            self._day = today
            self._used.clear()
        if self._used[client] + size > self.most - self._used.total() - size:
            return False
        self._used[client] += size
        return True
