"""UUIDv7: IDs that sort by their time of creation (RFC 9562 §5.7)."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID, SafeUUID

_FIXED = 0x7 << 76 | 0x2 << 62  # version and variant
_UNKNOWN = SafeUUID.unknown
_FRESH = (1 << 73) - 1  # a new millisecond starts in the lower half of the 74 random bits, to leave room for increments
_RANDOM = (1 << 74) - 1
_STOCK = 4000  # random bytes read at once, since each read costs as much as the rest of an ID
_last = [0, 0]  # the millisecond and the 74 bits of the newest ID in this process


def _random_bits() -> Iterator[int]:
    """64 bits at a time, each used once."""
    while True:
        yield from array("Q", os.urandom(_STOCK))


def _begin() -> None:
    global _random
    _random = _random_bits()


_random = _random_bits()
os.register_at_fork(after_in_child=_begin)  # a forked process does not use its parent's bits


def uuid7(seconds: float) -> UUID:
    """A new ID for this time. Within a process each is greater than the one before, even if the clock steps back."""
    # 9562 §6.2, method 2: within a millisecond, the random part grows by a random step
    milliseconds = _milliseconds(seconds)
    newest, bits = _last
    if milliseconds > newest or newest - milliseconds > 10_000:
        bits = _fresh_bits()
    else:
        milliseconds, bits = newest, bits + 1 + (next(_random) & 0xFFFFFFFF)
        if bits > _RANDOM:
            milliseconds, bits = newest + 1, _fresh_bits()
    _last[0], _last[1] = milliseconds, bits
    return _new(_number(milliseconds, bits))


def uuid7_floor(moment: datetime) -> UUID:
    """The smallest ID of that millisecond."""
    return UUID(int=_number(_milliseconds(moment.timestamp()), 0))


def uuid7_seconds(id_: UUID) -> float:
    """The time in an ID, in milliseconds' precision."""
    return (id_.int >> 80) / 1000


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1_000_000) // 1000  # floats are slightly above or below the exact microsecond


def _fresh_bits() -> int:
    return (next(_random) << 64 | next(_random)) & _FRESH


def _new(number: int) -> UUID:
    """Hot path: as the constructor does it, without its checks, which take as long as the rest of an ID."""
    id_ = object.__new__(UUID)
    object.__setattr__(id_, "int", number)
    object.__setattr__(id_, "is_safe", _UNKNOWN)
    return id_


def _number(milliseconds: int, bits: int) -> int:
    return milliseconds << 80 | _FIXED | bits >> 62 << 64 | bits & (1 << 62) - 1
