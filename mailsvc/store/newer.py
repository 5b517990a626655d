"""How many rows of a list are newer than those that somebody sees. It is asked often, so it counts few rows and gives up early."""

from __future__ import annotations

from collections.abc import Mapping

from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool, Transaction

MOST = 100  # rows that are counted
LOOKED = 1000  # rows that are looked at, if there is a filter
DEADLINE = "SET LOCAL statement_timeout = 200"  # milliseconds


async def count(pool: Pool, rows: str, named: Mapping[str, object]) -> int | None:
    """At most MOST. None if the database is busy or does not answer soon; the next time may be better.

    `rows`: a statement that selects the newer rows.
    """
    if pool.waiting:
        return None

    async def counted(tx: Transaction) -> int:
        await tx.run(DEADLINE)
        [(number,)] = await tx.rows(f"SELECT count(*) FROM ({rows} LIMIT {MOST}) newer", named)
        return int(number)

    try:
        return await pool.transact(counted)
    except StoreError:
        return None
