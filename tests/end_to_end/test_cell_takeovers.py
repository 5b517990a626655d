"""Standbys of a cluster's nodes take over: the experiments of `make scale`, small."""

from __future__ import annotations

import pytest

from tests.chaos import takeovers
from tests.chaos.patroni import INSTALLED

pytestmark = [pytest.mark.cells, pytest.mark.usefixtures("citus")]


def test_the_synchronous_standby_of_a_node_has_everything_when_it_takes_over() -> None:
    assert takeovers.of_a_node(100).lost == 0


def test_mail_is_held_after_a_standby_of_a_node_took_over_that_had_fallen_behind() -> None:
    figures = takeovers.of_a_node_fallen_behind(20)
    assert (figures.lost, figures.duplicates) == (0, takeovers.DEFERRED)


@pytest.mark.skipif(not INSTALLED, reason="needs Patroni, etcd and Postgres 15")
def test_patroni_promotes_the_standby_of_a_node() -> None:
    assert takeovers.of_a_node_promoted(100).lost == 0
