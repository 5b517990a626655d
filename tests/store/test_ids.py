"""IDs sort by time and are unique."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.store import ids
from mailsvc.store.ids import uuid7, uuid7_floor, uuid7_seconds

MOMENTS = st.integers(0, (1 << 48) - 1).map(lambda milliseconds: milliseconds / 1000)


@given(MOMENTS)
def test_the_fields_follow_the_rfc(seconds: float) -> None:
    created = uuid7_floor(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=min(seconds, 250_000_000_000)))
    assert created.version == 7
    assert created.variant == "specified in RFC 4122"


def test_the_example_of_the_rfc() -> None:
    moment = datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)  # 9562 appendix A.6
    assert str(uuid7_floor(moment)).startswith("017f22e2-79b0-7000-8000-")
    assert uuid7_seconds(UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")) == moment.timestamp()


@given(st.lists(st.integers(0, 3), min_size=2, max_size=200))
def test_ids_increase(steps: list[int]) -> None:
    seconds = 2_000_000_000.0
    created = []
    for step in steps:
        seconds += step / 1000 - 0.001  # the clock may step back
        created.append(uuid7(seconds))
    assert sorted(set(created)) == created


def test_ids_return_to_the_time_after_a_clock_was_far_ahead() -> None:
    uuid7(9_000_000_000.0)
    assert uuid7_seconds(uuid7(2_100_000_000.0)) == 2_100_000_000.0


@given(st.integers(1_600_000_000_000, 3_000_000_000_000))
def test_the_floor_is_below_all_ids_of_its_millisecond(milliseconds: int) -> None:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    ids._last[:] = [0, 0]
    created = uuid7(milliseconds / 1000)
    assert uuid7_floor(moment) < created < uuid7_floor(moment + timedelta(milliseconds=1))
    assert uuid7_seconds(created) == milliseconds / 1000


def test_a_forked_process_makes_other_ids() -> None:
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, uuid7(2_200_000_000.0).bytes)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != uuid7(2_200_000_000.0).bytes
    os.close(read)
    os.close(write)
