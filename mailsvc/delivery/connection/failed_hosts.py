"""Mail servers that fail during a mail, or that mail waits for in vain: other hosts of the destination come before them (RFC 5321 §5.1).

A host that refuses the connection is not remembered here, because the next one is tried at once (connect).
"""

from __future__ import annotations

from typing import Any

import attrs

from mailsvc.delivery.connection.host_memory import HostMemory

_FIRST = 1200.0  # seconds after a failure: longer than the first pauses between attempts
_AGAIN = 18_000.0  # seconds after a host failed when its turn came again: longer than the longest pause between attempts
_LONG = 10.0  # seconds without a session: a timeout rather than a refusal


@attrs.frozen
class _Failure:
    at: float
    again: bool


class FailedHosts:
    """As this process has seen them."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._failures = HostMemory[_Failure](clock, _AGAIN)

    def note(self, host: str, failed: bool) -> None:
        """How the latest mail of a connection went. Failures of several connections at about the same time count as one."""
        known = self._failures.get(host)
        if failed:
            now = self._clock.seconds()
            again = known is not None and (known.again or now >= known.at + _FIRST)
            self._failures.set(host, _Failure(now, again))
        elif known is not None:
            self._failures.forget(host)

    def waited(self, host: str, since: float) -> None:
        """There is no session with it, after an attempt that began at `since`."""
        if self._clock.seconds() - since >= _LONG:
            self.note(host, failed=True)

    def failed_at(self, host: str) -> float:
        """When it failed, in the clock's seconds; 0: not lately. The host with the smallest value is the best one to try."""
        known = self._failures.get(host)
        if known is None or self._clock.seconds() >= known.at + (_AGAIN if known.again else _FIRST):
            return 0.0
        return known.at
