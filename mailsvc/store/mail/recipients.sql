-- Recipients that wait are described by the queue, the others by their latest event. The parameters are inlined wherever they are used, so
-- that the plan covers only the partition of the email's day: planning for all days took 30 ms.
WITH given AS NOT MATERIALIZED (
    SELECT %(account_id)s::uuid AS account_id, %(email_id)s::uuid AS email_id
), told AS (
    SELECT DISTINCT ON (v.recipient) v.recipient, v.type, coalesce(v.data ->> 'reply', v.data ->> 'reason') AS said,
           v.data ->> 'reason' AS reason, v.data ->> 'class' AS class, v.data ->> 'rule' AS rule, v.data ? 'late' AS late
    FROM given g JOIN events v USING (account_id, email_id)
    WHERE v.recipient IS NOT NULL AND v.type = ANY (%(types)s)
    ORDER BY v.recipient, v.event_id DESC
), tried AS (
    SELECT recipient, count(*) AS attempts, (array_agg(reply ORDER BY attempt_id DESC))[1] AS reply,
           (array_agg(class ORDER BY attempt_id DESC))[1] AS class, (array_agg(rule ORDER BY attempt_id DESC))[1] AS rule
    FROM (
        SELECT a.attempt_id, r.recipient, r.reply, r.class, r.rule
        FROM given g JOIN attempts a USING (account_id, email_id),
             unnest(a.recipients, a.replies, a.classes, a.rules) AS r(recipient, reply, class, rule)
        UNION ALL
        SELECT v.event_id, v.recipient, v.data ->> 'reply', NULL, NULL
        FROM given g JOIN events v USING (account_id, email_id) WHERE v.type = 'email.delivered' AND v.data ? 'seconds'
    ) a
    GROUP BY recipient
)
SELECT r.number - 1, r.address, w.status, t.type, coalesce(w.reason, t.reason), w.next_at, coalesce(w.attempts, tried.attempts, 0),
       CASE WHEN t.late THEN t.said ELSE coalesce(tried.reply, t.said) END,
       CASE WHEN t.type IS NULL THEN tried.class ELSE t.class END, CASE WHEN t.type IS NULL THEN tried.rule ELSE t.rule END,
       w.expires_at
FROM given g
JOIN emails e USING (account_id, email_id)
CROSS JOIN unnest(e.recipients) WITH ORDINALITY AS r(address, number)
LEFT JOIN waiting_at(%(now)s) w ON w.email_id = g.email_id AND w.account_id = g.account_id AND w.recipient = r.number - 1
LEFT JOIN told t ON t.recipient = r.number - 1
LEFT JOIN tried ON tried.recipient = r.number - 1
ORDER BY r.number
