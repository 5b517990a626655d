-- All waiting recipients of a scheduled email are released together. Its lowest recipient represents it, so that there is one event.
-- The domain could send when the email was accepted, which can be a month ago.
WITH first AS MATERIALIZED (
    SELECT email_id FROM queue q
    WHERE lease IS NULL AND status = 'scheduled' AND next_at <= %s
    AND NOT EXISTS (SELECT FROM queue p WHERE p.email_id = q.email_id AND p.recipient < q.recipient AND p.status = 'scheduled')
    ORDER BY next_at LIMIT %s FOR UPDATE SKIP LOCKED
), moving AS MATERIALIZED (
    SELECT q.email_id, q.recipient, (
        SELECT s.origin FROM suppressions s WHERE s.account_id = q.account_id AND s.address = lower(q.address)
    ) AS barred, (
        SELECT CASE WHEN d.sending THEN 'The sending domain ' || d.name || ' is not verified any more.'
                    ELSE 'Sending is turned off for the domain ' || d.name || '.' END
        FROM domains d WHERE d.id = q.domain_id AND NOT (d.sending AND (d.status = 'verified' OR d.trusted_at IS NOT NULL))
    ) AS stopped
    FROM first JOIN queue q ON q.email_id = first.email_id AND q.status = 'scheduled'
), ended AS (
    DELETE FROM queue q USING moving m
    WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND (m.barred IS NOT NULL OR m.stopped IS NOT NULL)
    RETURNING q.account_id, q.email_id, q.domain_id, q.recipient, q.notify,
              CASE WHEN m.stopped IS NULL THEN 'email.suppressed' ELSE 'email.failed' END AS type,
              CASE WHEN m.stopped IS NULL THEN told_of_suppression(m.barred) ELSE jsonb_build_object('reason', m.stopped) END AS data
), released AS (
    UPDATE queue q SET status = 'queued'
    FROM moving m WHERE q.email_id = m.email_id AND q.recipient = m.recipient AND m.barred IS NULL AND m.stopped IS NULL
    RETURNING q.account_id, q.email_id, q.domain_id
)
SELECT account_id, email_id, domain_id, recipient, notify, type, data, 1 FROM ended
UNION ALL
(SELECT account_id, email_id, domain_id, NULL::smallint, NULL::smallint, 'email.sent', NULL::jsonb, count(*) FROM released GROUP BY 1, 2, 3)
