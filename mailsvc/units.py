"""Sizes and spans of time as people read them. Not here: moments (`dashboard/formatting`), and spans that people write (`cli/output`)."""

from __future__ import annotations

_SIZES = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
_SPANS = ((86400, "day", "d"), (3600, "hour", "h"), (60, "minute", "min"), (1, "second", "s"))


def size(count: float) -> str:
    """A number of bytes in the largest unit that fits: 1.5 MB. A kB has 1,024 bytes, as in the settings."""
    for limit, unit in _SIZES:
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return _counted(int(count), "byte")


def span(seconds: float) -> str:
    """Seconds in the largest unit that fits, in words: 3 hours."""
    for limit, unit, _ in _SPANS:
        if count := int(seconds / limit + 0.02):  # 6.99 days are 7
            return _counted(count, unit)
    return "a moment"


def short_span(seconds: float) -> str:
    """Seconds in the largest unit that fits, with two digits, for tables: 1.5 h."""
    limit, _, unit = next((each for each in _SPANS if seconds >= each[0]), _SPANS[-1])
    count = seconds / limit
    return f"{count:.0f} {unit}" if count >= 9.95 else f"{f'{count:.1f}'.removesuffix('.0')} {unit}"


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"
