"""SQL statements for store/events/outbox."""

from __future__ import annotations

from mailsvc.store.events.event_log import FACT
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import BY_INDEX, PLAN_BY_INDEX
from mailsvc.store.sql import statement

READY = BY_INDEX + statement("mailsvc.store.events", "outbox_ready")
CLAIM = BY_INDEX + statement("mailsvc.store.events", "outbox_claim", fact=FACT)

_SETTLE = statement("mailsvc.store.events", "outbox_settle")
SETTLE = Prepared("post", ("json",), _SETTLE, PLAN_BY_INDEX)

# All of these lock messages in the order of their IDs, so that they cannot wait for each other.

# Due again; only messages that were not claimed or sent in the meantime.
RELEASE = (
    BY_INDEX
    + """
UPDATE webhook_outbox o SET next_at = %(now)s
FROM unnest(%(ids)s::uuid[], %(events)s::uuid[], %(tries)s::smallint[]) AS k(webhook_id, event_id, tries)
WHERE o.webhook_id = k.webhook_id AND o.event_id = k.event_id AND o.tries = k.tries AND o.next_at = %(until)s
"""
)

CLEAR = (
    BY_INDEX
    + """
WITH held AS MATERIALIZED (
    SELECT o.webhook_id, o.event_id FROM webhook_outbox o
    WHERE o.webhook_id = %(id)s AND NOT EXISTS (SELECT FROM webhooks w WHERE w.id = %(id)s AND w.status = 'enabled')
    ORDER BY o.event_id LIMIT %(limit)s FOR UPDATE OF o
), gone AS (
    DELETE FROM webhook_outbox o USING held h WHERE o.webhook_id = h.webhook_id AND o.event_id = h.event_id
    RETURNING o.webhook_id, o.event_id, o.account_id
), ended AS (
    UPDATE webhook_messages m SET status = 'failed' FROM gone g
    WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
)
SELECT count(*) FROM gone
"""
)
