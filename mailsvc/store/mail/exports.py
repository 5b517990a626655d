"""The progress of exports, which are files streamed to a browser."""

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

RETENTION = timedelta(days=1)
SILENT = timedelta(seconds=30)  # without progress, after which an export counts as stopped

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
    """`reached`: the time in the last row written."""

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
        """Start an export under an ID chosen by the browser, and delete exports older than a day."""
        now = self._now()

        async def begin(tx: Transaction) -> None:
            await tx.run(OLD, (account_id, now - RETENTION))
            await tx.run(BEGIN, (account_id, export_id, kind, now, now))
            await write(tx, lines, now.timestamp())

        await self._pool.transact(begin)

    async def tell(self, account_id: UUID, export_id: UUID, state: State, rows: int, reached: datetime | None) -> None:
        await self._pool.run(TELL, (state, rows, reached, self._now(), account_id, export_id))

    async def get(self, account_id: UUID, export_id: UUID) -> Export | None:
        """An export without progress for a while counts as stopped."""
        rows = await self._pool.rows(GET, (account_id, export_id))
        if not rows:
            return None
        export = Export(*rows[0])
        silent = export.state == "running" and export.told_at < self._now() - SILENT
        return attrs.evolve(export, state="stopped") if silent else export

    def _now(self) -> datetime:
        return utc(self._clock)
