WITH requested AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::uuid[], %(numbers)s::integer[]) AS a(webhook_id, most)
), chosen AS MATERIALIZED (
    SELECT o.webhook_id, o.event_id
    FROM requested a CROSS JOIN LATERAL (
        SELECT webhook_id, event_id FROM webhook_outbox
        WHERE webhook_id = a.webhook_id AND next_at <= %(now)s ORDER BY next_at LIMIT a.most FOR UPDATE SKIP LOCKED
    ) o
), claimed AS (
    UPDATE webhook_outbox o SET next_at = %(until)s FROM chosen c WHERE o.webhook_id = c.webhook_id AND o.event_id = c.event_id
    RETURNING o.webhook_id, o.event_id, o.account_id, o.email_id, o.tries
)
SELECT c.webhook_id, c.event_id, c.account_id, c.tries,
       w.url, w.secret, CASE WHEN w.former_until > %(now)s THEN w.former END, x.payload, m.envelope ->> 'trace', {fact}
FROM claimed c
JOIN webhooks w ON w.id = c.webhook_id AND w.status = 'enabled'
LEFT JOIN webhook_messages x ON x.account_id = c.account_id AND x.webhook_id = c.webhook_id AND x.event_id = c.event_id
LEFT JOIN events e ON e.account_id = c.account_id AND e.email_id = c.email_id AND e.event_id = c.event_id
LEFT JOIN emails m ON m.account_id = c.account_id AND m.email_id = c.email_id
