"""Deletes the recipients of old broadcasts, whose emails are deleted too. The broadcasts and their counts stay.

So do clicked links, unless only one recipient followed them: such a URL can say who that was.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from uuid import UUID

import attrs

from mailsvc.store.in_turn import in_turn
from mailsvc.store.postgres.pool import Pool

BATCH = 5000  # recipients that one transaction deletes
BROADCASTS = 100  # in one sweep

# In a random order, so that those that fail every time do not keep the others from their turn.
OLD = """
SELECT account_id, id FROM broadcasts b
WHERE status IN ('sent', 'canceled', 'failed') AND coalesce(ended_at, started_at) < %s
AND EXISTS (SELECT FROM broadcast_recipients r WHERE r.account_id = b.account_id AND r.broadcast_id = b.id)
ORDER BY random() LIMIT %s
"""
DELETE = """
DELETE FROM broadcast_recipients WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM broadcast_recipients WHERE account_id = %s AND broadcast_id = %s LIMIT %s
))
"""
LINKS = "DELETE FROM broadcast_links WHERE account_id = %s AND broadcast_id = %s AND unique_clicks = 1"


@attrs.define(eq=False)
class BroadcastRetention:
    pool: Pool

    async def sweep(self, before: datetime) -> int:
        """Delete the recipients of broadcasts that ended before then. Returns how many."""
        deleted = 0

        async def delete(account_id: UUID, broadcast_id: UUID) -> None:
            nonlocal deleted
            await self.pool.run(LINKS, (account_id, broadcast_id))
            while count := await self.pool.run(DELETE, (account_id, broadcast_id, BATCH)):
                deleted += count

        await in_turn([partial(delete, *each) for each in await self.pool.rows(OLD, (before, BROADCASTS))])
        return deleted
