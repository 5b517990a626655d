"""Incidents of the service, which operators describe for the public status page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Impact = Literal["maintenance", "degraded", "down"]

SHOWN = timedelta(days=14)  # after they ended
_MOST = 50
_INCIDENT = Columns.named("id", "title", "impact", "components", "begun_at", "ended_at")
_RECENT = f"SELECT {_INCIDENT} FROM incidents WHERE ended_at IS NULL OR ended_at > %s ORDER BY begun_at DESC, id LIMIT {_MOST}"  # noqa: S608
_NOTES = "SELECT incident_id, at, text FROM incident_notes WHERE incident_id = ANY (%s) ORDER BY id DESC"
_ADD = "INSERT INTO incidents (id, title, impact, components, begun_at) VALUES (%s, %s, %s, %s, %s)"
_NOTE = "INSERT INTO incident_notes (incident_id, id, at, text) SELECT id, %s, %s, %s FROM incidents WHERE id = %s"
_END = "UPDATE incidents SET ended_at = %s WHERE id = %s AND ended_at IS NULL"


@attrs.frozen
class Note:
    at: datetime
    text: str


@attrs.frozen
class Incident:
    """`notes`: the newest first."""

    id: UUID
    title: str
    impact: Impact
    components: Sequence[str]
    begun_at: datetime
    ended_at: datetime | None
    notes: Sequence[Note] = ()


class Incidents:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def recent(self) -> list[Incident]:
        """Those that continue or ended lately, the newest first."""
        rows = await self._pool.rows(_RECENT, (utc(self._clock) - SHOWN,))
        found = [Incident(**_INCIDENT.read(row)) for row in rows]
        notes: dict[UUID, list[Note]] = {}
        for incident_id, at, text in await self._pool.rows(_NOTES, ([one.id for one in found],)) if found else ():
            notes.setdefault(incident_id, []).append(Note(at, text))
        return [attrs.evolve(one, notes=notes.get(one.id, [])) for one in found]

    async def begin(self, title: str, impact: Impact, components: Sequence[str], text: str, lines: Sequence[Line]) -> UUID:
        """Begin an incident with its first note."""
        now = utc(self._clock)
        id_ = uuid7(now.timestamp())

        async def begin(tx: Transaction) -> None:
            await tx.run(_ADD, (id_, title, impact, list(components), now))
            await tx.run(_NOTE, (uuid7(now.timestamp()), now, text, id_))
            await write(tx, lines, now.timestamp())

        await self._pool.transact(begin)
        return id_

    async def note(self, incident_id: UUID, text: str, end: bool, lines: Sequence[Line]) -> bool:
        """Add a note, and end the incident if it is over. Returns whether there is such an incident."""
        now = utc(self._clock)

        async def note(tx: Transaction) -> bool:
            if not await tx.run(_NOTE, (uuid7(now.timestamp()), now, text, incident_id)):
                return False
            if end:
                await tx.run(_END, (now, incident_id))
            await write(tx, lines, now.timestamp())
            return True

        return await self._pool.transact(note)
