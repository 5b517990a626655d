"""SQL statements for store/events/outbox."""

from __future__ import annotations

from mailsvc.store.events.event_log import FACT
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import BY_INDEX, PLAN_BY_INDEX

# Jumps from each endpoint with messages to the next one, regardless of how many messages it has.
READY = (
    BY_INDEX
    + """
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
SELECT max(webhook_id::text)::uuid, NULL, NULL, NULL, NULL, NULL FROM walk WHERE passed = %(walk)s -- where the walk stopped
"""
)

CLAIM = (
    BY_INDEX
    + f"""
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::uuid[], %(numbers)s::integer[]) AS a(webhook_id, most)
), chosen AS MATERIALIZED (
    SELECT o.webhook_id, o.event_id
    FROM asked a CROSS JOIN LATERAL (
        SELECT webhook_id, event_id FROM webhook_outbox
        WHERE webhook_id = a.webhook_id AND next_at <= %(now)s ORDER BY next_at LIMIT a.most FOR UPDATE SKIP LOCKED
    ) o
), claimed AS (
    UPDATE webhook_outbox o SET next_at = %(until)s FROM chosen c WHERE o.webhook_id = c.webhook_id AND o.event_id = c.event_id
    RETURNING o.webhook_id, o.event_id, o.account_id, o.email_id, o.tries
)
SELECT c.webhook_id, c.event_id, c.account_id, c.tries,
       w.url, w.secret, CASE WHEN w.former_until > %(now)s THEN w.former END, x.payload, {FACT}
FROM claimed c
JOIN webhooks w ON w.id = c.webhook_id AND w.status = 'enabled'
LEFT JOIN webhook_messages x ON x.account_id = c.account_id AND x.webhook_id = c.webhook_id AND x.event_id = c.event_id
LEFT JOIN events e ON e.account_id = c.account_id AND e.email_id = c.email_id AND e.event_id = c.event_id
LEFT JOIN emails m ON m.account_id = c.account_id AND m.email_id = c.email_id
"""
)

# Attempts are always recorded. Changes of the message only apply if the claim is still valid: no other attempt since.
_SETTLE = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS g(
        n integer, account_id uuid, webhook_id uuid, event_id uuid, tries smallint, attempt_id uuid, status integer, response text,
        seconds real, started_at timestamptz, at timestamptz, outcome text, next_at timestamptz, hold_until timestamptz,
        why text, failing_before timestamptz, asked boolean
    )
), done AS (
    DELETE FROM webhook_outbox o USING given g
    WHERE o.webhook_id = g.webhook_id AND o.event_id = g.event_id AND o.tries = g.tries AND g.outcome <> 'retry'
    RETURNING g.n
), again AS (
    UPDATE webhook_outbox o SET tries = o.tries + 1, next_at = g.next_at
    FROM given g
    WHERE o.webhook_id = g.webhook_id AND o.event_id = g.event_id AND o.tries = g.tries AND g.outcome = 'retry'
), ended AS (
    UPDATE webhook_messages m SET status = g.outcome FROM given g JOIN done USING (n)
    WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
), logged AS (
    INSERT INTO webhook_attempts (account_id, webhook_id, event_id, attempt_id, status, response, seconds, started_at, next_at)
    SELECT account_id, webhook_id, event_id, attempt_id, status, response, seconds, started_at, next_at FROM given g
    WHERE EXISTS ( -- otherwise its partition may have been dropped, and that of the attempt with it
        SELECT FROM webhook_messages m WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
    )
), newest AS (
    SELECT DISTINCT ON (webhook_id) g.*, bool_or(outcome = 'success') OVER (PARTITION BY webhook_id) AS good
    FROM given g WHERE asked ORDER BY webhook_id, at DESC, n DESC
), health AS (
    UPDATE webhooks w
    SET failing_since = CASE WHEN h.good THEN NULL ELSE coalesce(w.failing_since, h.at) END,
        failed_at = CASE WHEN h.good THEN w.failed_at ELSE h.at END,
        failed_with = CASE WHEN h.good THEN w.failed_with ELSE h.status END,
        took_at = CASE WHEN h.good THEN h.at ELSE w.took_at END,
        warned_at = CASE WHEN h.good THEN NULL ELSE w.warned_at END,
        hold_until = CASE WHEN h.good THEN NULL ELSE greatest(w.hold_until, h.hold_until) END,
        status = CASE WHEN NOT h.good AND (h.why IS NOT NULL OR w.failing_since <= h.failing_before) THEN 'disabled' ELSE w.status END,
        disabled_why = CASE
            WHEN h.good OR w.status = 'disabled' THEN w.disabled_why
            WHEN h.why IS NOT NULL THEN h.why
            WHEN w.failing_since <= h.failing_before THEN 'All attempts failed for too long.'
        END
    FROM newest h
    WHERE w.id = h.webhook_id
    AND (NOT h.good OR w.failing_since IS NOT NULL OR w.hold_until IS NOT NULL
         OR coalesce(w.took_at < h.at - interval '1 minute', true)) -- at most once a minute
    RETURNING w.id, w.status
)
SELECT id FROM health WHERE status = 'disabled'
"""
SETTLE = Prepared("post", ("json",), _SETTLE, PLAN_BY_INDEX)

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
WITH gone AS (
    DELETE FROM webhook_outbox WHERE ctid = ANY (ARRAY(
        SELECT o.ctid FROM webhook_outbox o
        WHERE o.webhook_id = %(id)s AND NOT EXISTS (SELECT FROM webhooks w WHERE w.id = %(id)s AND w.status = 'enabled') LIMIT %(limit)s
    ))
    RETURNING webhook_id, event_id, account_id
), ended AS (
    UPDATE webhook_messages m SET status = 'failed' FROM gone g
    WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
)
SELECT count(*) FROM gone
"""
)
