-- The service's own emails, such as password resets, are not counted for the account that has one of the domains $2, from which they are sent.
-- IDs grow with time: within a batch, numbers follow the time of events, across batches the order of commits.
WITH taken AS MATERIALIZED (
    DELETE FROM fresh_events WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM fresh_events WHERE shard = ANY (current_setting('mailsvc.shards')::smallint[]) LIMIT $1
    ))
    RETURNING account_id, email_id, event_id, domain_id, type, coalesce(kind, type) AS kind, weight, at
), public AS (
    SELECT * FROM taken WHERE type <> ALL ({internal})
), grown AS (
    INSERT INTO event_sequences AS s (account_id, last)
    SELECT account_id, count(*) FROM public GROUP BY account_id ORDER BY account_id
    ON CONFLICT (account_id) DO UPDATE SET last = s.last + excluded.last
    RETURNING account_id, last
), numbered AS (
    INSERT INTO event_log (account_id, sequence, email_id, event_id)
    SELECT t.account_id, g.last - count(*) OVER (PARTITION BY t.account_id)
           + row_number() OVER (PARTITION BY t.account_id ORDER BY t.event_id), t.email_id, t.event_id
    FROM public t JOIN grown g USING (account_id)
), counted AS (
    INSERT INTO rollups AS r (account_id, hour, domain_id, type, count)
    SELECT account_id, date_trunc('hour', at, 'UTC'), domain_id, kind, sum(weight) FROM taken t
    WHERE NOT (t.domain_id = ANY (ARRAY(SELECT id FROM domains WHERE name = ANY ($2))) AND coalesce((
        SELECT source FROM emails WHERE account_id = t.account_id AND email_id = t.email_id
    ) IN {service}, false))
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (account_id, hour, domain_id, type) DO UPDATE SET count = r.count + excluded.count
), personal AS MATERIALIZED (
    SELECT t.account_id, e.broadcast_id, e.contact_id, t.type, t.kind, t.weight, t.at
    FROM (SELECT * FROM taken t WHERE EXISTS (SELECT FROM broadcasts b WHERE b.account_id = t.account_id) OFFSET 0) t CROSS JOIN LATERAL (
        SELECT broadcast_id, contact_id FROM emails
        WHERE account_id = t.account_id AND email_id = t.email_id AND broadcast_id IS NOT NULL OFFSET 0
    ) e
), counted_by_broadcast AS (
    INSERT INTO broadcast_counts AS c (account_id, broadcast_id, hour, type, count)
    SELECT account_id, broadcast_id, date_trunc('hour', at, 'UTC'), kind, sum(weight) FROM personal GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (account_id, broadcast_id, hour, type) DO UPDATE SET count = c.count + excluded.count
), marked AS (
    UPDATE broadcast_recipients r SET marks = r.marks | m.marks
    FROM (
        SELECT account_id, broadcast_id, contact_id,
               bit_or(CASE type WHEN 'email.bounced' THEN 1 WHEN 'email.complained' THEN 2 WHEN 'email.suppressed' THEN 4
                           WHEN 'email.opened' THEN 16 ELSE 32 END)::smallint AS marks
        FROM personal
        WHERE type IN ('email.bounced', 'email.complained', 'email.suppressed', 'email.opened', 'email.clicked') GROUP BY 1, 2, 3
    ) m
    WHERE r.account_id = m.account_id AND r.broadcast_id = m.broadcast_id AND r.contact_id = m.contact_id AND r.marks & m.marks <> m.marks
), told AS (
    INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at)
    SELECT t.account_id, w.id, t.event_id, t.email_id, t.type, t.at
    FROM public t CROSS JOIN LATERAL (
        SELECT id FROM webhooks
        WHERE account_id = t.account_id AND status = 'enabled' AND t.type = ANY (events) AND id < t.event_id OFFSET 0
    ) w
    RETURNING webhook_id, event_id, account_id, email_id, created_at
), outgoing AS (
    INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at)
    SELECT webhook_id, event_id, account_id, email_id, created_at FROM told
    RETURNING 1
)
SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM outgoing)
