-- Attempts are always recorded. Changes of the message only apply if the claim is still valid: no other attempt since. A message that was
-- discarded meanwhile, and so failed, has succeeded if this attempt did.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS g(
        n integer, account_id uuid, webhook_id uuid, url text, event_id uuid, tries smallint, attempt_id uuid, status integer, response text,
        seconds real, started_at timestamptz, at timestamptz, outcome text, next_at timestamptz, hold_until timestamptz,
        why text, failing_before timestamptz, request_sent boolean
    )
), held AS MATERIALIZED ( -- in this order, as a replay does (webhook_log)
    SELECT FROM given g JOIN webhook_outbox o ON o.webhook_id = g.webhook_id AND o.event_id = g.event_id
    ORDER BY o.webhook_id, o.event_id FOR UPDATE OF o
), done AS (
    DELETE FROM webhook_outbox o USING given g
    WHERE o.webhook_id = g.webhook_id AND o.event_id = g.event_id AND o.tries = g.tries AND g.outcome <> 'retry'
    AND (SELECT count(*) FROM held) >= 0
    RETURNING g.n
), again AS (
    UPDATE webhook_outbox o SET tries = o.tries + 1, next_at = g.next_at
    FROM given g
    WHERE o.webhook_id = g.webhook_id AND o.event_id = g.event_id AND o.tries = g.tries AND g.outcome = 'retry'
    AND (SELECT count(*) FROM held) >= 0
), ended AS (
    UPDATE webhook_messages m SET status = g.outcome FROM given g LEFT JOIN done USING (n)
    WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
    AND (done.n IS NOT NULL OR (g.outcome = 'success' AND m.status = 'failed')) -- the endpoint was disabled during the request
), logged AS (
    INSERT INTO webhook_attempts (account_id, webhook_id, event_id, attempt_id, status, response, seconds, started_at, next_at)
    SELECT account_id, webhook_id, event_id, attempt_id, status, response, seconds, started_at, next_at FROM given g
    WHERE EXISTS ( -- otherwise its partition may have been dropped, and that of the attempt with it
        SELECT FROM webhook_messages m WHERE m.account_id = g.account_id AND m.webhook_id = g.webhook_id AND m.event_id = g.event_id
    )
), newest AS (
    SELECT DISTINCT ON (webhook_id, url) g.*, bool_or(outcome = 'success') OVER (PARTITION BY webhook_id, url) AS good
    FROM given g WHERE request_sent ORDER BY webhook_id, url, at DESC, n DESC
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
    WHERE w.id = h.webhook_id AND w.url = h.url -- attempts at a former URL say nothing about the endpoint
    AND (w.status = 'enabled' OR NOT h.good) -- a success does not clear since when a disabled one fails: the notice needs it
    AND (NOT h.good OR w.failing_since IS NOT NULL OR w.hold_until IS NOT NULL
         OR coalesce(w.took_at < h.at - interval '1 minute', true)) -- at most once a minute
    RETURNING w.id, w.status
)
SELECT id FROM health WHERE status = 'disabled'
