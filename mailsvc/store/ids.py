"""UUIDv7: IDs that sort by their time of creation (RFC 9562 §5.7)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

_VERSION, _VARIANT = 0x7 << 76, 0x2 << 62
_FRESH = (1 << 73) - 1  # a new millisecond starts in the lower half of the 74 random bits, to leave room for increments
_RANDOM = (1 << 74) - 1
_STOCK = 4000  # random bytes read at once, since each read costs as much as the rest of an ID
_last = [0, 0]  # the millisecond and the 74 bits of the newest ID in this process


def _random_bits() -> Iterator[int]:
    """80 bits at a time, each used once."""
    while True:
        stock = os.urandom(_STOCK)
        for at in range(0, _STOCK, 10):
            yield int.from_bytes(stock[at : at + 10], "big")


def _begin() -> None:
    global _random
    _random = _random_bits()


_random = _random_bits()
os.register_at_fork(after_in_child=_begin)  # a forked process does not use its parent's bits


def uuid7(seconds: float) -> UUID:
    """A new ID for this time. Within a process each is greater than the one before, even if the clock steps back."""
    # 9562 §6.2, method 2: within a millisecond, the random part grows by a random step
    milliseconds, bits = _milliseconds(seconds), next(_random)
    if milliseconds > _last[0] or _last[0] - milliseconds > 10_000:
        _last[:] = [milliseconds, bits & _FRESH]
    else:
        _last[1] += 1 + (bits & 0xFFFFFFFF)
        if _last[1] > _RANDOM:
            _last[:] = [_last[0] + 1, bits & _FRESH]
    return _assemble(*_last)


def uuid7_floor(moment: datetime) -> UUID:
    """The smallest ID of that millisecond."""
    return _assemble(_milliseconds(moment.timestamp()), 0)


def uuid7_seconds(id_: UUID) -> float:
    """The time in an ID, in milliseconds' precision."""
    return (id_.int >> 80) / 1000


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1_000_000) // 1000  # floats are slightly above or below the exact microsecond


def _assemble(milliseconds: int, bits: int) -> UUID:
    return UUID(int=milliseconds << 80 | _VERSION | bits >> 62 << 64 | _VARIANT | bits & (1 << 62) - 1)
