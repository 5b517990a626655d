-- The webhook messages about the given events: found by the account's endpoints, because the key begins with them.
SELECT w.url, x.type, x.status, o.tries, o.next_at, coalesce(t.attempts, 0), t.status, t.response, t.started_at,
       w.status = 'enabled', w.disabled_why, w.failing_since
FROM webhooks w
CROSS JOIN unnest(%(events)s::uuid[]) AS e(event_id)
JOIN webhook_messages x ON x.account_id = w.account_id AND x.webhook_id = w.id AND x.event_id = e.event_id
LEFT JOIN webhook_outbox o ON o.webhook_id = x.webhook_id AND o.event_id = x.event_id
LEFT JOIN LATERAL (
    SELECT count(*) OVER () AS attempts, a.status, a.response, a.started_at FROM webhook_attempts a
    WHERE a.account_id = x.account_id AND a.webhook_id = x.webhook_id AND a.event_id = x.event_id
    ORDER BY a.attempt_id DESC LIMIT 1
) t ON true
WHERE w.account_id = %(account_id)s
ORDER BY w.id, x.event_id
