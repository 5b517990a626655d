"""How many cores have nothing to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mailsvc.runtime.idle_cores import EVERY, IdleCores, idle_seconds


def test_the_average_is_that_between_two_measurements() -> None:
    now, idle = 100.0, 5.0
    cores = IdleCores(lambda: now, lambda: idle)
    assert cores() == 0.0  # nothing is known yet
    now, idle = now + EVERY / 2, idle + 9
    assert cores() == 0.0
    now, idle = 100.0 + 2 * EVERY, 5.0 + 3 * EVERY
    assert cores() == 1.5
    idle += 100
    assert cores() == 1.5  # it is too soon to measure again
    now += EVERY
    assert cores() == 100 / EVERY


def test_idle_time_is_that_of_all_cores_together(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(f"cpu  1 2 3 {4 * ticks} {ticks} 6 7 8 9 10\ncpu0 1 2 3 4 5\n")
    assert idle_seconds(stat) == 5.0
    assert idle_seconds(tmp_path / "missing") == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux has it")
def test_this_machine_was_idle_at_times() -> None:
    assert idle_seconds(Path("/proc/stat")) > 0
