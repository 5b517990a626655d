-- A plan made for an empty table must also suit a full one, so it leaves the planner no choice: each row is found by its key and then by
-- its position. A row at another position is no longer leased, because nothing else changes leased rows.
-- What may have been delivered stays uncertain while it is retried, so that nobody can cancel it and a late bounce is recorded.
-- Returns the settled recipients as [settlement, recipient], or null for all of them.
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS g(
        n integer, recipient smallint, email_id uuid, account_id uuid, domain_id uuid, shard smallint, lease bigint, at timestamptz,
        status text, next_at timestamptz, reason text, outcome text, reply text, class text, rule text, event_id uuid, type text,
        data jsonb, suppression uuid, host text, source text, fault smallint, passed smallint
    )
), held AS MATERIALIZED (
    SELECT g.*, q.place, q.was FROM given g CROSS JOIN LATERAL (
        SELECT ctid AS place, status AS was FROM queue
        WHERE email_id = g.email_id AND recipient = g.recipient AND account_id = g.account_id AND lease IS NOT DISTINCT FROM g.lease
        OFFSET 0
    ) q
), gone AS (
    DELETE FROM queue q USING held h WHERE q.ctid = h.place AND h.status IS NULL
    RETURNING h.n, h.recipient, q.address, true AS announced, q.notify
), kept AS (
    UPDATE queue q
    SET lease = NULL, region = {region_now}, status = CASE h.was WHEN 'uncertain' THEN h.was ELSE h.status END, next_at = h.next_at,
        reason = h.reason, attempts = q.attempts + 1, host = coalesce(h.host, q.host), source = coalesce(h.source, q.source),
        faults = q.faults + h.fault
    FROM held h WHERE q.ctid = h.place AND h.status IS NOT NULL
    RETURNING h.n, h.recipient, q.address, h.was NOT IN ('delayed', 'uncertain') AS announced, q.notify
), settled AS MATERIALIZED (
    SELECT g.*, s.address, s.announced, s.notify & ~coalesce(g.passed, 0::smallint) AS notify
    FROM (SELECT * FROM gone UNION ALL SELECT * FROM kept) s JOIN given g USING (n, recipient)
), barred AS (
    INSERT INTO suppressions (id, account_id, address, email, origin, source_id, reason, created_at)
    SELECT DISTINCT ON (account_id, lower(address)) suppression, account_id, lower(address), address, 'bounce', email_id, reply, at
    FROM settled WHERE suppression IS NOT NULL ORDER BY account_id, lower(address)
    ON CONFLICT (account_id, address) DO NOTHING
    RETURNING *
), facts AS MATERIALIZED (
    SELECT shard, account_id, email_id, event_id, domain_id, recipient, type, at, data FROM settled WHERE announced
    UNION ALL
    SELECT s.shard, b.account_id, b.id, b.id, '00000000-0000-0000-0000-000000000000', NULL, 'suppression.added', b.created_at, {suppression_data}
    FROM barred b JOIN settled s ON s.suppression = b.id
), history AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, at, data FROM facts
), fresh AS (
    INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, kind)
    SELECT shard, account_id, email_id, event_id, domain_id, type, at,
           CASE WHEN type = 'email.bounced' THEN type || '.' || lower(data ->> 'type') END
    FROM facts
), noticed AS (
    {insert_notices}
), once AS MATERIALIZED (
    SELECT * FROM json_to_recordset($2) AS o(
        n integer, account_id uuid, email_id uuid, attempt_id uuid, host text, address text, tls text, started_at timestamptz,
        seconds real, transcript text, source text, signature text
    )
    JOIN (
        SELECT n, array_agg(recipient ORDER BY recipient) AS recipients, array_agg(outcome ORDER BY recipient) AS outcomes,
               array_agg(reply ORDER BY recipient) AS replies, array_agg(class ORDER BY recipient) AS classes,
               array_agg(rule ORDER BY recipient) AS rules
        FROM settled GROUP BY n
    ) a USING (n)
), tried AS (
    INSERT INTO attempts (account_id, email_id, attempt_id, recipients, outcomes, replies, classes, rules, host, address, tls, started_at,
                          seconds, transcript, source)
    SELECT account_id, email_id, attempt_id, recipients, outcomes, replies, classes, rules, host, address, tls, started_at, seconds,
           transcript, source
    FROM once WHERE attempt_id IS NOT NULL
), signed AS (
    INSERT INTO messages (account_id, email_id, piece, bytes)
    SELECT account_id, email_id, -1, convert_to(signature, 'UTF8') FROM once WHERE signature IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN (SELECT count(*) FROM settled) < (SELECT count(*) FROM given) THEN (
    SELECT coalesce(jsonb_agg(jsonb_build_array(n, recipient)), '[]') FROM settled
) END
