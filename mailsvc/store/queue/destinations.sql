-- One scan of the region's queue. A destination without waiting mail is listed while it is held.
WITH counted AS (
    SELECT destination AS name,
           count(*) FILTER (WHERE lease IS NULL AND status = 'queued') AS queued,
           count(*) FILTER (WHERE lease IS NULL AND status = 'delayed') AS delayed,
           count(*) FILTER (WHERE lease IS NULL AND status = 'uncertain') AS uncertain,
           count(*) FILTER (WHERE lease IS NOT NULL) AS sending,
           count(*) FILTER (WHERE status = 'scheduled') AS scheduled,
           min(email_id::text COLLATE "C") FILTER (WHERE status <> 'scheduled') AS oldest,
           min(next_at) FILTER (WHERE lease IS NULL AND status <> 'scheduled') AS next_at,
           max(reason COLLATE "C") FILTER (WHERE lease IS NULL AND reason IS NOT NULL AND status <> 'scheduled') AS own
    FROM queue WHERE region = %(region)s GROUP BY destination
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
