"""When a broadcast is paused."""

from __future__ import annotations

import pytest

from mailsvc.broadcasts.breaker import Breaker

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("total", "delivered", "bounced", "complained", "paused"),
    [
        (MILLION, 0, 0, 0, False),
        (MILLION, 0, 999, 0, False),  # too early to judge
        (MILLION, 949, 51, 0, True),
        (MILLION, 950, 50, 0, False),  # exactly the limit
        (MILLION, 1000, 0, 3, False),
        (MILLION, 1000, 0, 4, True),
        (20_000, 180, 20, 0, True),  # 1 % of the contacts
        (20_000, 179, 20, 0, False),
        (500, 89, 10, 0, False),  # fewer than 100 outcomes
        (500, 90, 10, 0, True),
        (MILLION, 900_000, 40_000, 0, False),
        (MILLION, 900_000, 60_000, 0, True),  # any time later
    ],
)
def test_reasons(total: int, delivered: int, bounced: int, complained: int, paused: bool) -> None:
    counts = {"delivered": delivered, "bounced": bounced, "complained": complained}
    assert (Breaker().reason(total, counts) is not None) is paused


def test_only_what_came_after_the_continuation_is_judged() -> None:
    before = {"delivered": 900, "bounced": 100, "complained": 0}
    assert Breaker().reason(MILLION, before, before) is None
    after = {"delivered": 1850, "bounced": 149, "complained": 0}
    assert Breaker().reason(MILLION, after, before) is None
    assert "bounced" in (Breaker().reason(MILLION, {**after, "bounced": 160}, before) or "")
