"""Deletes the rows of old days from a table with a column of days, one day after the other.

All days at once can take longer than a statement may, for example after their retention was shortened. Then none would ever be deleted.
"""

from __future__ import annotations

from datetime import date

from mailsvc.store.postgres.pool import Pool


async def sweep(pool: Pool, table: str, column: str, before: date) -> None:
    """Delete the rows of days before this one. `table` and `column` are never input; the column has an index."""
    oldest = f"SELECT min({column}) FROM {table} WHERE {column} < %s"
    while (day := (await pool.rows(oldest, (before,)))[0][0]) is not None:
        await pool.run(f"DELETE FROM {table} WHERE {column} = %s", (day,))
