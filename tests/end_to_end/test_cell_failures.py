"""Cells on a cluster of three nodes while servers are killed or stopped, and links cut: the experiments of `make scale`, small."""

from __future__ import annotations

import pytest

from tests.chaos import account_moves, cells, links
from tests.chaos.networks import can_cut

pytestmark = [pytest.mark.cells, pytest.mark.usefixtures("citus")]


def test_servers_and_the_daemon_are_killed_while_a_cell_is_moved() -> None:
    assert cells.killed_while_moving(150, 4).lost == 0


def test_mail_flows_without_the_coordinator() -> None:
    assert cells.without_coordinator(30).lost == 0


def test_a_stopped_node_delays_its_own_cells_alone() -> None:
    assert cells.stopped_worker(20).lost == 0


def test_nodes_and_daemons_are_killed_while_an_account_is_moved() -> None:
    assert account_moves.killed_while_moved(50, 2).lost == 0


@pytest.fixture
def networks() -> None:
    if not can_cut():
        pytest.skip("Networks cannot be created here: that needs root and iproute2.")


@pytest.mark.usefixtures("networks")
def test_a_cell_does_everything_while_the_link_to_the_coordinator_is_cut() -> None:
    figures = links.without_coordinator(30, 0)
    assert (figures.lost, figures.duplicates) == (0, 0)


@pytest.mark.usefixtures("networks")
def test_a_daemon_survives_a_cut_link_to_its_node() -> None:
    assert links.without_node(100, (3,)).lost == 0
