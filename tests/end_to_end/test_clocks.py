"""A running daemon whose clock steps; the experiments of `make chaos` at a small size."""

from __future__ import annotations

import pytest

from tests.chaos import clocks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(clocks.LIBRARY is None, reason="needs libfaketime (Debian: libfaketime)")]


def test_while_the_clocks_disagree_nothing_expires_is_accepted_or_is_attempted() -> None:
    figures = clocks.wrong_clock(5, 12.0)
    assert (figures.delivered, figures.waiting) == (figures.accepted, 1), "only the scheduled mail waits"


def test_a_step_of_the_machines_clock_stops_neither_delivery_nor_heartbeats() -> None:
    figures = clocks.step_back(5)
    assert figures.delivered == figures.accepted
