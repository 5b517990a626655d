"""What became of TLS with others, counted by day as TLS reports tell it (RFC 8460 §4.4): in memory, and every minute in the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, Protocol

from twisted.logger import Logger

from mailsvc.delivery import pace

Line = tuple[date, str, str, str, str]  # day, policy domain, policy type, host, result
_MOST = 50_000  # kept while the database is away


class Results(Protocol):
    """store/queue/tls"""

    async def add(self, counts: Mapping[Line, int]) -> None: ...


class TlsCounts:
    """One for a process."""

    log = Logger()

    def __init__(self, clock: Any, results: Results | None = None) -> None:
        self._clock, self._results = clock, results
        self.counts: Counter[Line] = Counter()

    def count(self, domain: str, policy: str, host: str, result: str) -> None:
        key = (pace.now(self._clock).date(), domain, policy, host, result)
        if key in self.counts or len(self.counts) < _MOST:
            self.counts[key] += 1

    async def write(self) -> None:
        """What was counted since the last time; kept for the next time when it cannot be written."""
        if self._results is None or not self.counts:
            return
        counts, self.counts = self.counts, Counter()
        try:
            await self._results.add(counts)
        except Exception as error:
            self.counts.update(counts)
            self.log.warn("the results of TLS could not be written: {error!r}", error=error)
