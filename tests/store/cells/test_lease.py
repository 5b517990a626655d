"""The lease of a cell, on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_twisted

from mailsvc.runtime.database import in_thread
from mailsvc.store.cells.lease import CellLease
from mailsvc.store.cells.nodes import Cluster
from mailsvc.store.cells.views import find
from mailsvc.store.postgres.cells import at, directly
from tests.store.cells.accounts import Cells

pytestmark = pytest.mark.cells

Make = Callable[[str], CellLease]


@pytest.fixture
def made(cluster: Cells) -> Iterator[Make]:
    from twisted.internet import reactor

    leases: list[CellLease] = []

    def make(machine: str, cell: str = "red") -> CellLease:
        leases.append(CellLease(directly(cluster.url, cell), machine, reactor))
        return leases[-1]

    yield make
    for lease in leases:
        lease.close()


@pytest_twisted.ensureDeferred
async def test_one_of_several_machines_has_it(made: Make) -> None:
    one, two = made("one"), made("two")
    assert await one.machines() == {"one": False}
    assert await one.take()
    assert await one.take(), "again"
    assert not await two.take()
    assert await two.machines() == {"one": True, "two": False}
    await one.give_up()
    assert not one.held
    assert await two.take()
    assert await one.machines() == {"one": False, "two": True}


@pytest_twisted.ensureDeferred
async def test_it_ends_with_the_machine(made: Make) -> None:
    one, two = made("one"), made("two")
    assert await one.take()
    one.close()
    assert not one.held
    while await two.machines() != {"two": False}:
        pass  # until the server has noticed
    assert await two.take()


@pytest_twisted.ensureDeferred
async def test_each_cell_has_its_own(made: Any) -> None:
    red, blue = made("one"), made("two", "blue")
    assert await red.take()
    assert await blue.take()
    assert await blue.machines() == {"two": True}


@pytest_twisted.ensureDeferred
async def test_the_server_notices_soon_that_a_machine_is_gone(made: Make) -> None:
    one = made("one")
    await one.machines()
    found = [(await one._connection.execute(f"SHOW tcp_keepalives_{name}")).rows for name in ("idle", "interval", "count")]
    assert found == [[("10",)], [("5",)], [("1",)]]


@pytest_twisted.ensureDeferred
async def test_it_follows_a_cell_that_is_moved(made: Make, cluster: Cells) -> None:
    from twisted.internet import reactor

    one = made("one")
    assert await one.take()
    before = find(cluster.url, "red").node
    await in_thread(reactor, lambda: Cluster(cluster.url, {}).move("red", find(cluster.url, "blue").node))
    assert await one.machines() == {"one": False}, "its session was on the other node"
    assert not one.held
    assert await one.take()
    old = CellLease(directly(at(cluster.url, before), "red"), "old", reactor)
    assert await old.machines() == {"old": False, "one": True}, "any node leads there"
    old.close()
    await in_thread(reactor, lambda: Cluster(cluster.url, {}).move("red", before))
