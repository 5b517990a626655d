"""The events of one email, in order, for display."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.events.event_data import EventData, read
from mailsvc.store.postgres.pool import Pool

# The event email.sent of a broadcast's email is not stored if no endpoint receives it. Its row in emails (`e`) says the same.
UNSTORED = """e.broadcast_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM events s WHERE s.account_id = e.account_id AND s.email_id = e.email_id AND s.type IN ('email.sent', 'email.suppressed')
)"""
EVENTS = f"""
SELECT event_id, recipient, type, at, data FROM events WHERE account_id = %(account_id)s AND email_id = %(email_id)s
UNION ALL
SELECT e.email_id, NULL, 'email.sent', e.created_at, NULL FROM emails e
WHERE e.account_id = %(account_id)s AND e.email_id = %(email_id)s AND {UNSTORED}
ORDER BY event_id LIMIT %(most)s
"""
MAX_EVENTS = 2000


@attrs.frozen
class EventView:
    """`recipient` None: the event is about the whole email."""

    event_id: UUID
    recipient: int | None
    type: str
    at: datetime
    data: EventData


class History:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def events(self, account_id: UUID, email_id: UUID) -> list[EventView]:
        """Oldest first, the first 2,000."""
        rows = await self._pool.rows(EVENTS, {"account_id": account_id, "email_id": email_id, "most": MAX_EVENTS})
        return [EventView(event_id, recipient, type_, at, read(type_, data or {})) for event_id, recipient, type_, at, data in rows]
