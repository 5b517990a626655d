-- What each queued recipient of an email waits for. Pauses, holds and slowdowns are listed only while they are in force.
-- LEAST ignores nulls, and the database's infinity is no datetime: hence CASE and the year 9999.
SELECT q.recipient, q.region, q.destination, least(q.next_at, '9999-12-31 23:59:59.999999+00'), q.expires_at, q.source,
       a.reason, CASE WHEN a.until IS NOT NULL THEN least(a.until, '9999-12-31 23:59:59.999999+00') END,
       h.reason, CASE WHEN h.until IS NOT NULL THEN least(h.until, '9999-12-31 23:59:59.999999+00') END, h.failures, s.reason, s.until, s.per_minute
FROM queue q
LEFT JOIN account_pauses a ON a.account_id = q.account_id AND a.until > %(now)s
LEFT JOIN LATERAL (
    SELECT d.reason, d.until, d.failures FROM destinations d
    WHERE d.region = q.region AND d.name IN (q.destination, split_part(q.destination, '/', 1), '*') AND d.until > %(now)s
    ORDER BY d.until DESC LIMIT 1
) h ON true
LEFT JOIN LATERAL (
    SELECT l.reason, l.until, l.per_minute FROM slowdowns l
    WHERE l.region = q.region AND l.name IN (q.destination, split_part(q.destination, '/', 1)) AND l.until > %(now)s
    ORDER BY l.per_minute LIMIT 1
) s ON true
WHERE q.account_id = %(account_id)s AND q.email_id = %(email_id)s
ORDER BY q.recipient
