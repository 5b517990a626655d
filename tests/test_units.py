from __future__ import annotations

import pytest

from mailsvc import units


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 kB"),
        (40 << 20, "40.0 MB"),
        (3 << 29, "1.5 GB"),
        (5 << 50, "5120.0 TB"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert units.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "words", "short"),
    [
        (0, "a moment", "0 s"),
        (0.25, "a moment", "0.2 s"),
        (1, "1 second", "1 s"),
        (9.96, "9 seconds", "10 s"),
        (12, "12 seconds", "12 s"),
        (60, "1 minute", "1 min"),
        (3590, "1 hour", "60 min"),
        (5400, "1 hour", "1.5 h"),
        (7 * 86400 - 600, "7 days", "7 d"),
        (200000, "2 days", "2.3 d"),
        (100 * 86400, "100 days", "100 d"),
    ],
)
def test_spans(seconds: float, words: str, short: str) -> None:
    assert (units.span(seconds), units.short_span(seconds)) == (words, short)
