-- One scan of the region's queue. A destination without waiting mail is listed while it is held. Shows the most frequent of several reasons.
-- The reason of an account's pause is shown if all mail there waits for such a pause; otherwise it says nothing about the destination.
WITH counted AS (
    SELECT q.destination AS name,
           count(*) FILTER (WHERE q.lease IS NULL AND q.status = 'queued') AS queued,
           count(*) FILTER (WHERE q.lease IS NULL AND q.status = 'delayed') AS delayed,
           count(*) FILTER (WHERE q.lease IS NULL AND q.status = 'uncertain') AS uncertain,
           count(*) FILTER (WHERE q.lease IS NOT NULL) AS sending,
           count(*) FILTER (WHERE q.status = 'scheduled') AS scheduled,
           min(q.email_id::text COLLATE "C") FILTER (WHERE q.status <> 'scheduled') AS oldest,
           min(q.next_at) FILTER (WHERE q.lease IS NULL AND q.status <> 'scheduled') AS next_at,
           coalesce(
               mode() WITHIN GROUP (ORDER BY q.reason COLLATE "C") FILTER (
                   WHERE q.lease IS NULL AND q.reason IS NOT NULL AND q.status <> 'scheduled' AND p.account_id IS NULL),
               CASE WHEN bool_and(p.account_id IS NOT NULL) FILTER (WHERE q.lease IS NULL AND q.status <> 'scheduled')
                    THEN max(p.reason COLLATE "C") FILTER (WHERE q.lease IS NULL AND q.status <> 'scheduled') END) AS own
    FROM queue q
    LEFT JOIN account_pauses p ON p.account_id = q.account_id AND p.until > %(now)s AND p.until >= q.next_at
    WHERE q.region = %(region)s GROUP BY q.destination
), held AS (
    SELECT name, state, reason, least(until, '9999-12-31 23:59:59.999999+00') AS until, failures
    FROM destinations WHERE region = %(region)s AND until > %(now)s
)
SELECT c.name, c.queued, c.delayed, c.uncertain, c.sending, c.scheduled, c.oldest, c.next_at,
       CASE WHEN d.state IS NOT NULL THEN d.state WHEN s.name IS NOT NULL THEN 'slow' END, coalesce(d.reason, s.reason, c.own),
       coalesce(d.until, s.until), coalesce(d.failures, 0)
FROM counted c
LEFT JOIN slowdowns s ON s.region = %(region)s AND s.name = split_part(c.name, '/', 1) AND s.until > %(now)s
LEFT JOIN LATERAL (
    SELECT * FROM held WHERE held.name IN (c.name, split_part(c.name, '/', 1), '*') ORDER BY held.until DESC LIMIT 1
) d ON true
UNION ALL
SELECT h.name, 0, 0, 0, 0, 0, NULL, NULL, h.state, h.reason, h.until, h.failures
FROM held h WHERE NOT EXISTS (SELECT FROM counted c WHERE h.name = c.name)
ORDER BY 2 DESC, 3 DESC, 1 LIMIT %(limit)s
