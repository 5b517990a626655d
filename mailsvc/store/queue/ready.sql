-- A loose index scan: jumps from each destination to the next, however many rows wait for it. The last row of the result says
-- where the scan stopped before the end, if it did.
WITH RECURSIVE scan (destination, passed) AS (
    (SELECT destination, 1 FROM queue
     WHERE region = %(region)s AND lease IS NULL AND status <> 'scheduled' AND destination > %(start)s
     ORDER BY destination LIMIT 1)
    UNION ALL
    SELECT (SELECT q.destination FROM queue q
            WHERE q.region = %(region)s AND q.lease IS NULL AND q.status <> 'scheduled' AND q.destination > w.destination
            ORDER BY q.destination LIMIT 1),
           w.passed + 1
    FROM scan w WHERE w.destination IS NOT NULL AND w.passed < %(scan)s
), heads AS (
    SELECT w.destination,
           (SELECT q.next_at FROM queue q WHERE q.region = %(region)s AND q.destination = w.destination AND NOT q.bulk
            AND q.lease IS NULL AND q.status <> 'scheduled' ORDER BY q.next_at LIMIT 1) AS transactional_at,
           (SELECT q.next_at FROM queue q WHERE q.region = %(region)s AND q.destination = w.destination AND q.bulk
            AND q.lease IS NULL AND q.status <> 'scheduled' ORDER BY q.next_at LIMIT 1) AS bulk_at
    FROM scan w
    WHERE w.destination IS NOT NULL AND w.destination <> ALL (%(skip)s::text[])
    AND NOT EXISTS (SELECT FROM destinations d WHERE d.region = %(region)s AND d.until > %(now)s
                    AND d.name IN (w.destination, split_part(w.destination, '/', 1), '*'))
)
(SELECT destination,
        CASE WHEN transactional_at <= %(now)s THEN false WHEN bulk_at <= %(now)s THEN true
             ELSE coalesce(bulk_at < transactional_at, transactional_at IS NULL) END,
        least(transactional_at, bulk_at)
 FROM heads ORDER BY 3 LIMIT %(limit)s)
UNION ALL
SELECT max(destination), NULL, NULL FROM scan WHERE passed = %(scan)s
