"""How soon the next attempt may be made, after attempts that failed. Pure but for the clock it is given.

Nobody is locked out: a browser that signed in to an address before is counted by itself, so that strangers who guess at the
address slow down strangers alone. Addresses that nobody has are counted like those that somebody has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

import attrs

FREE = 5  # failures that cost nothing
FREE_ADDRESS = 20  # of a network address, which many people may share
LONGEST = 900.0
FORGOTTEN = 3600.0
MOST = 20_000


@attrs.frozen
class _Failures:
    count: int
    last: float


@attrs.define(eq=False)
class Throttle:
    clock: Callable[[], float]
    _failures: OrderedDict[Hashable, _Failures] = attrs.field(factory=OrderedDict, init=False)

    def wait(self, subjects: Iterable[tuple[str, str]]) -> float:
        """Seconds until an attempt that concerns these is looked at; 0: at once."""
        return max([0.0, *(self._wait(subject) for subject in subjects)])

    def failed(self, subjects: Iterable[tuple[str, str]]) -> None:
        now = self.clock()
        for subject in subjects:
            before = self._failures.pop(subject, None)
            count = 1 if before is None or now - before.last > FORGOTTEN else before.count + 1
            self._failures[subject] = _Failures(count, now)
        while len(self._failures) > MOST:
            self._failures.popitem(last=False)

    def passed(self, subject: tuple[str, str]) -> None:
        self._failures.pop(subject, None)

    def _wait(self, subject: tuple[str, str]) -> float:
        found = self._failures.get(subject)
        free = FREE_ADDRESS if subject[0] == "address" else FREE
        if found is None or found.count < free:
            return 0.0
        return max(0.0, found.last + min(LONGEST, 2.0 ** min(found.count - free, 20)) - self.clock())
