-- A plan made for an empty table must also suit a full one, so it leaves the planner no choice: the other recipients of each email are
-- found by its ID, and locked rows by their position. A row changed meanwhile has another position and is left for the next claim.
-- A first attempt needs the message next: messages are returned too if all would fit, were they as large as each of them. Large ones are
-- not, because they have further pieces; nor those about a topic, which are read later, when it is known who still wants them.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(destinations)s::text[], %(limits)s::bigint[]) AS a(destination, most)
), chosen AS MATERIALIZED (
    SELECT d.ctid, d.email_id, a.destination FROM wanted a CROSS JOIN LATERAL (
        SELECT * FROM (
            {transactional}
            UNION ALL
            {bulk}
        ) due LIMIT a.most
    ) d
), along AS MATERIALIZED (
    SELECT a.ctid FROM (SELECT DISTINCT email_id, destination FROM chosen) c CROSS JOIN LATERAL (
        SELECT q.ctid FROM queue q
        WHERE q.email_id = c.email_id AND q.region IS NOT DISTINCT FROM %(region)s AND q.destination IS NOT DISTINCT FROM c.destination
        AND coalesce(q.lease, -1) = -1 AND q.status <> 'scheduled' AND q.next_at <= %(now)s
        FOR UPDATE SKIP LOCKED
    ) a
), leased AS (
    UPDATE queue q SET lease = %(lease)s
    WHERE q.ctid = ANY (ARRAY(SELECT ctid FROM chosen UNION SELECT ctid FROM along))
    RETURNING q.*
), counted AS (
    SELECT *, row_number() OVER (PARTITION BY email_id) AS nth, count(*) OVER () AS many FROM leased
)
SELECT l.account_id, l.email_id, l.recipient, l.domain_id, l.region, l.address, l.destination, l.attempts, l.status, l.expires_at,
       l.bulk, l.host, l.source, l.faults, l.next_at, e.envelope,
       CASE WHEN e.size <= {small} AND e.size * l.many <= %(message_bytes)s THEN (
           SELECT bytes FROM messages m WHERE m.account_id = l.account_id AND m.email_id = l.email_id AND m.piece = 0
       ) END, CASE WHEN l.attempts = 0 THEN l.broadcast_id END, e.encrypted, CASE WHEN e.compressed THEN e.size END
FROM counted l LEFT JOIN LATERAL (
    SELECT size, envelope, encrypted, compressed FROM emails
    WHERE account_id = l.account_id AND email_id = l.email_id AND l.nth = 1 AND l.attempts = 0 AND %(message_bytes)s > 0
    AND topic_id IS NULL OFFSET 0
) e ON true
