-- Recipients of a paused broadcast to whom nothing was sent do not expire: they get more time, so that they are not found again at once.
-- `continue_` (store/broadcasts/broadcasts) gives them the time that they had left.
WITH ended AS MATERIALIZED (
    SELECT w.email_id, w.recipient, p.reason, w.attempts = 0 AND EXISTS (
        SELECT FROM broadcasts b WHERE b.account_id = w.account_id AND b.id = w.broadcast_id AND b.paused_at IS NOT NULL
    ) AS paused
    FROM queue w LEFT JOIN account_pauses p ON p.account_id = w.account_id AND p.until >= w.expires_at
    WHERE w.lease IS NULL AND w.expires_at <= %s ORDER BY w.expires_at LIMIT %s FOR UPDATE OF w SKIP LOCKED
), kept AS (
    UPDATE queue q SET expires_at = q.expires_at + interval '{more_time} days' FROM ended e
    WHERE e.paused AND q.email_id = e.email_id AND q.recipient = e.recipient
), gone AS (
    DELETE FROM queue q USING ended e
    WHERE NOT e.paused AND q.email_id = e.email_id AND q.recipient = e.recipient
    RETURNING q.account_id, q.email_id, q.recipient, q.domain_id, q.status, coalesce(e.reason, q.reason) AS reason, q.notify
)
SELECT (SELECT count(*) FROM ended), g.* FROM (SELECT) AS one LEFT JOIN gone g ON true
