"""The events of one email, in order, for display."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool

EVENTS = "SELECT event_id, recipient, type, at, data FROM events WHERE account_id = %s AND email_id = %s ORDER BY event_id LIMIT %s"
MAX_EVENTS = 2000


@attrs.frozen
class EventView:
    """`recipient` None: the event is about the whole email."""

    event_id: UUID
    recipient: int | None
    type: str
    at: datetime
    data: Mapping[str, object]


class History:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def events(self, account_id: UUID, email_id: UUID) -> list[EventView]:
        """Oldest first, the first 2,000."""
        rows = await self._pool.rows(EVENTS, (account_id, email_id, MAX_EVENTS))
        return [EventView(event_id, recipient, type_, at, data or {}) for event_id, recipient, type_, at, data in rows]
