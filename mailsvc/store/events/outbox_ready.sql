-- Jumps from each endpoint with messages to the next one, regardless of how many messages it has. The last row of the result
-- says where the walk stopped before the end, if it did.
WITH RECURSIVE walk (webhook_id, passed) AS (
    (SELECT webhook_id, 1 FROM webhook_outbox WHERE webhook_id > %(start)s ORDER BY webhook_id LIMIT 1)
    UNION ALL
    SELECT (SELECT o.webhook_id FROM webhook_outbox o WHERE o.webhook_id > k.webhook_id ORDER BY o.webhook_id LIMIT 1), k.passed + 1
    FROM walk k WHERE k.webhook_id IS NOT NULL AND k.passed < %(walk)s
), due AS (
    SELECT k.webhook_id FROM walk k
    WHERE k.webhook_id IS NOT NULL AND k.webhook_id <> ALL (%(skip)s::uuid[])
    AND (SELECT o.next_at FROM webhook_outbox o WHERE o.webhook_id = k.webhook_id ORDER BY o.next_at LIMIT 1) <= %(now)s
)
(SELECT d.webhook_id, w.account_id, w.url, w.failing_since IS NOT NULL, coalesce(w.status = 'enabled', false),
        w.failing_since IS NULL AND coalesce(w.took_at > %(lately)s, false) AS well
 FROM due d LEFT JOIN webhooks w ON w.id = d.webhook_id
 WHERE w.id IS NULL OR w.status = 'disabled'
 OR ((w.hold_until IS NULL OR w.hold_until <= %(now)s) AND (w.failing_since IS NULL OR %(failing)s))
 ORDER BY well DESC, w.failing_since IS NOT NULL LIMIT %(limit)s)
UNION ALL
SELECT max(webhook_id::text)::uuid, NULL, NULL, NULL, NULL, NULL FROM walk WHERE passed = %(walk)s
