"""Which source addresses may send."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.admission.sources import SourceFacts, block, decide, next_day, sentence

NOW = datetime(2030, 1, 1, 13, 30, tzinfo=UTC)
WARM, NEW, SPENT = SourceFacts("192.0.2.1"), SourceFacts("192.0.2.2", left=5), SourceFacts("192.0.2.3", left=0)
COMING, SOON = (SourceFacts("192.0.2.6", left=0, begins=date(2030, 1, day)) for day in (5, 3))
LISTED, ELSEWHERE = SourceFacts("192.0.2.4", listed=True), SourceFacts("192.0.2.5", here=False)

facts = st.builds(
    SourceFacts, st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1"]), st.integers(1, 9), st.booleans(), st.booleans(),
    st.none() | st.integers(0, 3),
)  # fmt: skip


def test_warm_sources_take_the_overflow_of_their_pool() -> None:
    assert decide([WARM, NEW], [], NOW).usable == (WARM, NEW)
    assert decide([WARM, SPENT], [], NOW).usable == (WARM,)


def test_a_listed_source_sends_nothing() -> None:
    assert decide([LISTED, WARM], [], NOW).usable == (WARM,)


@pytest.mark.parametrize(("pool", "reason", "until"), [
    ([SPENT], "source warm-up", datetime(2030, 1, 2, tzinfo=UTC)),
    ([SPENT, LISTED], "source warm-up", datetime(2030, 1, 2, tzinfo=UTC)),
    ([COMING], "source not begun", datetime(2030, 1, 5, tzinfo=UTC)),
    ([COMING, LISTED, SOON], "source not begun", datetime(2030, 1, 3, tzinfo=UTC)),
    ([SPENT, COMING], "source warm-up", datetime(2030, 1, 2, tzinfo=UTC)),
    ([LISTED], "sources listed", NOW + timedelta(hours=1)),
    ([], "no source", NOW + timedelta(minutes=10)),
    ([SPENT, ELSEWHERE], "other process", None),
])  # fmt: skip
def test_why_nothing_may_send_and_until_when(pool: list[SourceFacts], reason: str, until: datetime | None) -> None:
    decision = decide(pool, [], NOW)
    assert (decision.usable, decision.reason, decision.until) == ((), reason, until)


def test_another_pool_takes_only_what_the_own_one_cannot() -> None:
    assert decide([NEW], [WARM], NOW).usable == (NEW,)
    assert decide([SPENT], [WARM], NOW).usable == (WARM,)
    assert decide([ELSEWHERE], [WARM], NOW).reason == "other process"
    assert decide([], [SPENT], NOW).reason == "source warm-up"


@given(st.lists(facts, max_size=5), st.lists(facts, max_size=3))
def test_what_is_usable_may_send_and_every_refusal_has_a_time(pool: list[SourceFacts], overflow: list[SourceFacts]) -> None:
    decision = decide(pool, overflow, NOW)
    assert all(each.here and not each.listed and each.left != 0 for each in decision.usable)
    if decision.admitted:
        assert decision.reason == "admitted"
    elif decision.until is None:
        assert any(not each.here and not each.listed and each.left != 0 for each in (*pool, *overflow))
    else:
        assert decision.until > NOW


@given(st.datetimes(timezones=st.just(UTC), max_value=datetime(9998, 1, 1)))
def test_the_next_day_is_ahead_and_at_most_a_day_away(now: datetime) -> None:
    assert timedelta() < next_day(now) - now <= timedelta(days=1)


@given(st.integers(1, 10**7))
def test_a_block_is_a_small_part_of_the_day(limit: int) -> None:
    assert 1 <= block(limit) <= min(limit, 500)
    assert block(limit) <= max(5, limit // 20)


def test_the_reasons_name_the_pool_and_the_provider() -> None:
    assert sentence("source warm-up", "bulk", "google") == (
        "Source warm-up: the source addresses of the pool bulk have sent as many emails to google as they may today. "
        "They continue tomorrow (UTC)."
    )
    assert "to other providers as" in sentence("source warm-up", "", "other")
    assert sentence("source not begun", "bulk", "google") == (
        "Source warm-up: the source addresses of the pool bulk send nothing before the first day of their warm-up."
    )
    assert sentence("sources listed", "", "google").startswith("All source addresses are on block lists.")
