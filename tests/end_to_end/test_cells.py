"""Cells on a cluster of three nodes, moved and shared under load. The commands, and where data is: test_cell_commands. With failures:
test_cell_failures."""

from __future__ import annotations

import pytest

from tests.chaos import account_moves, cells, machines

pytestmark = [pytest.mark.cells, pytest.mark.usefixtures("citus")]


def test_a_cell_is_moved_under_load() -> None:
    figures = cells.moved_cell(50, 1)
    assert (figures.lost, figures.duplicates) == (0, 0)


def test_one_service_runs_the_processes_of_the_cells_that_it_is_told() -> None:
    machines.named()


def test_machines_share_cells_and_take_over_those_of_one_that_is_killed() -> None:
    assert machines.shared(400).lost == 0


def test_an_account_is_moved_under_load_and_the_command_killed_at_each_step() -> None:
    figures = account_moves.moved_account(50, 1)
    assert (figures.lost, figures.duplicates) == (0, 0)
