"""The coordinator of a cell's cluster: changing the cell's schema there while the service runs (partitions), and whether it can be reached.

Citus accepts changes of the schema only on the coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.cells import PLACE, Place, at, cell_of, through_citus
from mailsvc.store.postgres.connection import Connection
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool

CONNECT_SECONDS = 5  # for each address of the coordinator, when it is only checked


@asynccontextmanager
async def changing_schema(pool: Pool) -> AsyncIterator[Pool]:
    """A pool whose statements change the schema: the same one, or for a cell, one connection to the coordinator. Raises a StoreError."""
    cell = cell_of(pool.dsn)
    if cell is None:
        yield pool
        return
    coordinator = Pool(_dsn(pool, cell, await _place(pool, cell)), pool.reactor, size=1, name="mailsvc schema")
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


async def unreachable(pool: Pool) -> str | None:
    """Why this process cannot connect to the coordinator of the pool's cell. None if it can, or if the cell is on that node.

    A connection is opened and closed. It counts once the server has executed a statement, which opening one includes. Raises a StoreError
    if the node of the cell does not say where the coordinator is.
    """
    cell = cell_of(pool.dsn) or ""
    place = await _place(pool, cell)
    if place.coordinating:
        return None
    dsn = make_dsn(_dsn(pool, cell, place), connect_timeout=CONNECT_SECONDS)
    try:
        connection = await Connection.open(pool.reactor, dsn, "mailsvc coordinator", lambda _: None)
    except StoreError as error:
        return f"{place.coordinator}: {getattr(error, 'reason', error)}".rstrip(".")
    connection.abandon()
    return None


async def _place(pool: Pool, cell: str) -> Place:
    [row] = await pool.rows(PLACE, (cell,))
    return Place.of(row)


def _dsn(pool: Pool, cell: str, place: Place) -> str:
    return through_citus(at(pool.dsn, place.coordinator), cell)
