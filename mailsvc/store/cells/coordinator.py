"""Changes of a cell's schema while the service runs: partitions. Citus accepts them only on the coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mailsvc.store.postgres.cells import PLACE, Place, at, cell_of, through_citus
from mailsvc.store.postgres.pool import Pool


@asynccontextmanager
async def changing_schema(pool: Pool) -> AsyncIterator[Pool]:
    """A pool whose statements change the schema: the same one, or for a cell, one connection to the coordinator. Raises a StoreError."""
    cell = cell_of(pool.dsn)
    if cell is None:
        yield pool
        return
    [row] = await pool.rows(PLACE, (cell,))
    coordinator = Pool(through_citus(at(pool.dsn, Place.of(row).coordinator), cell), pool.reactor, size=1, name="mailsvc schema")
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()
