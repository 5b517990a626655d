-- Events that happened while an endpoint was disabled have no messages: makes those of one batch of events, newest first.
WITH looked AS MATERIALIZED (
    SELECT sequence, email_id, event_id FROM event_log
    WHERE account_id = %(account_id)s AND (%(below)s::bigint IS NULL OR sequence < %(below)s) ORDER BY sequence DESC LIMIT %(limit)s
), told AS (
    INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at)
    SELECT e.account_id, w.id, e.event_id, e.email_id, e.type, e.at
    FROM looked l JOIN events e ON e.account_id = %(account_id)s AND e.email_id = l.email_id AND e.event_id = l.event_id
    JOIN webhooks w ON w.account_id = e.account_id AND w.id = %(webhook_id)s AND e.type = ANY (w.events)
    WHERE l.event_id > %(after)s ON CONFLICT DO NOTHING RETURNING webhook_id, event_id, account_id, email_id
), outgoing AS (
    INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at)
    SELECT webhook_id, event_id, account_id, email_id, %(now)s FROM told ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM told), min(sequence), coalesce(bool_or(event_id > %(after)s), false) FROM looked
