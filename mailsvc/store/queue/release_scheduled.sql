-- All waiting recipients of a scheduled email are released together. Its lowest recipient represents it, so that there is one event.
WITH first AS MATERIALIZED (
    SELECT email_id FROM queue q
    WHERE lease IS NULL AND status = 'scheduled' AND next_at <= %s
    AND NOT EXISTS (SELECT FROM queue p WHERE p.email_id = q.email_id AND p.recipient < q.recipient AND p.status = 'scheduled')
    ORDER BY next_at LIMIT %s FOR UPDATE SKIP LOCKED
), moving AS MATERIALIZED (
    SELECT q.email_id, q.recipient, (
        SELECT s.origin FROM suppressions s WHERE s.account_id = q.account_id AND s.address = lower(q.address)
    ) AS barred
    FROM first JOIN queue q ON q.email_id = first.email_id AND q.status = 'scheduled'
), suppressed AS (
    DELETE FROM queue q USING moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND m.barred IS NOT NULL
    RETURNING q.account_id, q.email_id, q.domain_id, q.recipient, told_of_suppression(m.barred) AS data
), released AS (
    UPDATE queue q SET status = 'queued' FROM moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND m.barred IS NULL
    RETURNING q.account_id, q.email_id, q.domain_id
)
SELECT account_id, email_id, domain_id, recipient, data, 1 FROM suppressed
UNION ALL
(SELECT account_id, email_id, domain_id, NULL::smallint, NULL::jsonb, count(*) FROM released GROUP BY 1, 2, 3)
