"""What a process knows of accounts that leave its cell, on a cluster."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.runtime.database import in_thread
from mailsvc.store.cells.hold import CellHold
from mailsvc.store.postgres.cells import directly
from mailsvc.store.postgres.pool import Pool
from tests.store.cells.accounts import BLUE, RED, Cells
from tests.store.fixtures import ACCOUNT, OTHER

pytestmark = pytest.mark.cells


@pytest_twisted.ensureDeferred
async def test_an_account_that_leaves_is_known_before_the_next_statement(cells: Cells) -> None:
    from twisted.internet import reactor

    pool = Pool(directly(cells.url, RED), reactor, size=2)
    hold = CellHold(pool, reactor)
    await hold.start()
    try:
        await pool.start()
        known: list[str | None] = []
        hold.on_resume.append(lambda: known.append(hold.moved_to(ACCOUNT, before)))
        before = reactor.seconds()
        assert hold.moved_to(ACCOUNT, before) is None
        await in_thread(reactor, cells.move)
        await pool.rows("SELECT 1")  # waits until the hold is taken again
        assert known[-1:] == [BLUE] and pool.connections
        assert (hold.moved_to(ACCOUNT, before), hold.moved_to(OTHER, before)) == (BLUE, None)
        assert hold.moved_to(ACCOUNT, reactor.seconds()) is None, "what begins now is told where the account is"
    finally:
        await pool.stop()
        await hold.stop()
