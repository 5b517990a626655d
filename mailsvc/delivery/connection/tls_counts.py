"""TLS results by day, as TLS reports count them (RFC 8460 §4.4): in memory, written to the database every minute."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.connection.connect import OpenConnection
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.queue.tls import TlsRecords

Count = tuple[date, str, str, str, str]  # day, policy domain, policy type, host, result
# The result type of a failure in TLS reports (8460 §4.3), by a part of its reason.
_RESULTS = (
    ("does not offer STARTTLS", "starttls-not-supported"),
    ("the certificate is not for", "certificate-host-mismatch"),
    ("expired", "certificate-expired"),
    ("TLSA", "tlsa-invalid"),
    ("self-signed", "certificate-not-trusted"),
    ("unknown", "certificate-not-trusted"),
    ("not trusted", "certificate-not-trusted"),
)
_MOST = 50_000  # kept while the database is unavailable


class TlsCounts:
    """One for a process."""

    log = Logger()

    def __init__(self, clock: Any, records: TlsRecords | None = None) -> None:
        self._clock, self._records = clock, records
        self.counts: Counter[Count] = Counter()

    def start(self, opened: Opened) -> None:
        """Write them every minute from now on, and at the end."""
        opened.add("the last TLS results", self.write)
        opened.add("TLS results", every(self._clock, 60.0, "writing TLS results", self.write))

    def count(self, domain: str, policy: str, host: str, result: str) -> None:
        key = (pace.now(self._clock).date(), domain, policy, host, result)
        if key in self.counts or len(self.counts) < _MOST:
            self.counts[key] += 1

    async def write(self) -> None:
        """Write what was counted since the last time. If that fails, it is kept for the next time."""
        if self._records is None or not self.counts:
            return
        counts, self.counts = self.counts, Counter()
        try:
            await self._records.add(counts)
        except Exception as error:
            self.counts.update(counts)
            self.log.warn("TLS results could not be written: {error!r}", error=error)


def result_of(reason: str) -> str:
    """The type of a failure of TLS."""
    return next((result for part, result in _RESULTS if part in reason), "validation-failure")


def result_if_trusted(connection: OpenConnection) -> str:
    """The result of a session, as TLS reports call it, if the server's certificate had to be trusted."""
    if connection.client.tls is None:
        return "starttls-not-supported"
    fault = None if connection.mode == "verified" else connection.client.certificate_fault()
    return "success" if fault is None else result_of(fault)
