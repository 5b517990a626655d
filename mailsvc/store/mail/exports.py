"""Exports: files that are being written to somebody's browser, and how far each has got."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction

State = Literal["running", "done", "stopped"]

KEPT = timedelta(days=1)
SILENT = timedelta(seconds=30)  # after which nobody writes it any more

OLD = "DELETE FROM exports WHERE account_id = %s AND begun_at < %s"
BEGIN = """
INSERT INTO exports (account_id, id, kind, state, begun_at, told_at) VALUES (%s, %s, %s, 'running', %s, %s)
ON CONFLICT (account_id, id) DO UPDATE
SET state = 'running', rows = 0, reached = NULL, begun_at = excluded.begun_at, told_at = excluded.told_at
"""
TELL = "UPDATE exports SET state = %s, rows = %s, reached = %s, told_at = %s WHERE account_id = %s AND id = %s"
GET = "SELECT state, rows, reached, begun_at, told_at FROM exports WHERE account_id = %s AND id = %s"


@attrs.frozen
class Export:
    """`reached`: the time of the last row that was written."""

    state: State
    rows: int
    reached: datetime | None
    begun_at: datetime
    told_at: datetime


class Exports:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def begin(self, account_id: UUID, export_id: UUID, kind: str, lines: Sequence[Line] = ()) -> None:
        """Under an id that the browser knows already. What is a day old is forgotten."""
        now = self._now()

        async def begin(tx: Transaction) -> None:
            await tx.run(OLD, (account_id, now - KEPT))
            await tx.run(BEGIN, (account_id, export_id, kind, now, now))
            await write(tx, lines, now.timestamp())

        await self._pool.transact(begin)

    async def tell(self, account_id: UUID, export_id: UUID, state: State, rows: int, reached: datetime | None) -> None:
        await self._pool.run(TELL, (state, rows, reached, self._now(), account_id, export_id))

    async def get(self, account_id: UUID, export_id: UUID) -> Export | None:
        """One that nobody has heard of for a while has stopped."""
        rows = await self._pool.rows(GET, (account_id, export_id))
        if not rows:
            return None
        export = Export(*rows[0])
        silent = export.state == "running" and export.told_at < self._now() - SILENT
        return attrs.evolve(export, state="stopped") if silent else export

    def _now(self) -> datetime:
        return utc(self._clock)
