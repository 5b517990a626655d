"""What delivery has learned about mail servers, by host: it holds for a while, and the number of hosts is limited."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_SECONDS = 3600.0
_HOSTS = 10_000  # remembered; the oldest are forgotten


class HostMemory(Generic[T]):
    def __init__(self, clock: Any, seconds: float = _SECONDS) -> None:
        self._clock, self._seconds = clock, seconds
        self._known: OrderedDict[str, tuple[T, float]] = OrderedDict()  # and until when

    def get(self, host: str) -> T | None:
        known = self._known.get(host)
        return known[0] if known is not None and self._clock.seconds() < known[1] else None

    def set(self, host: str, value: T) -> None:
        self._known[host] = value, self._clock.seconds() + self._seconds
        self._known.move_to_end(host)
        while len(self._known) > _HOSTS:
            self._known.popitem(last=False)

    def forget(self, host: str) -> None:
        self._known.pop(host, None)
