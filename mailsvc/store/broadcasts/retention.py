"""Deletes the recipients of old broadcasts, whose emails are deleted too. The broadcasts and their counts stay.

So do clicked links, unless only one recipient followed them: such a URL can say who that was.
"""

from __future__ import annotations

from datetime import datetime

import attrs

from mailsvc.store.postgres.pool import Pool

BATCH = 5000  # recipients that one transaction deletes
BROADCASTS = 100  # in one sweep

OLD = """
SELECT account_id, id FROM broadcasts b
WHERE status IN ('sent', 'canceled', 'failed') AND coalesce(ended_at, started_at) < %s
AND EXISTS (SELECT FROM broadcast_recipients r WHERE r.account_id = b.account_id AND r.broadcast_id = b.id)
ORDER BY started_at LIMIT %s
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
        for account_id, broadcast_id in await self.pool.rows(OLD, (before, BROADCASTS)):
            await self.pool.run(LINKS, (account_id, broadcast_id))
            while count := await self.pool.run(DELETE, (account_id, broadcast_id, BATCH)):
                deleted += count
        return deleted
