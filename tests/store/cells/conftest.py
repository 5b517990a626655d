"""Two cells on a cluster, with an account in the red one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.cells import clustered
from tests.citus import is_citus
from tests.store.cells.accounts import Cells


@pytest.fixture(scope="module")
def cluster(postgres: str) -> Iterator[Cells]:
    if not is_citus(postgres):
        pytest.skip("The server of the tests does not have Citus. See .ci/run.")
    with clustered(2) as servers:
        yield Cells.of(servers)


@pytest.fixture
def cells(cluster: Cells) -> Cells:
    cluster.fill()
    return cluster
