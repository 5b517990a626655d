-- An email of a broadcast has no row for its event email.sent unless an endpoint receives it: its row in emails says the same
-- (store/mail/history). As email.queued it is only counted.
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS x(
        {types},
        expires_at timestamptz, region text, destinations text[], leases bigint[], notify smallint[], hashes text[],
        event_id uuid, type text,
        data jsonb, shard smallint, at integer, length integer)
), stored AS (
    INSERT INTO emails ({columns})
    SELECT {columns}
    FROM new
), recipients AS MATERIALIZED (
    SELECT n.email_id, r.number - 1 AS recipient, n.account_id, n.domain_id, n.region, r.address, r.destination,
           CASE WHEN n.scheduled_at IS NULL THEN 'queued' ELSE 'scheduled' END AS status,
           n.bulk, coalesce(n.scheduled_at, n.created_at) AS next_at, n.expires_at, r.lease, r.notify, n.broadcast_id, n.contact_id,
           coalesce(CASE WHEN n.scheduled_at IS NULL THEN (
               SELECT s.origin FROM suppressions s WHERE s.account_id = n.account_id AND s.address = lower(r.address)
           ) END, CASE WHEN r.hashes IS NOT NULL THEN (
               SELECT s.origin FROM erased_suppressions s
               WHERE s.account_id = n.account_id
               AND s.hash = ANY (ARRAY(SELECT decode(h, 'hex') FROM unnest(string_to_array(r.hashes, ' ')) AS h)) LIMIT 1
           ) END) AS barred
    FROM new n,
         unnest(n.recipients, n.destinations, n.leases, n.notify, n.hashes) WITH ORDINALITY
             AS r(address, destination, lease, notify, hashes, number)
), queued AS (
    INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease,
                       notify, broadcast_id)
    SELECT email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease, notify,
           broadcast_id
    FROM recipients WHERE barred IS NULL
), reached AS (
    INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks)
    SELECT account_id, broadcast_id, contact_id, email_id, CASE WHEN barred IS NULL THEN 0 ELSE 4 END
    FROM recipients WHERE broadcast_id IS NOT NULL
), facts AS MATERIALIZED (
    SELECT n.shard, n.account_id, n.email_id, n.event_id, n.domain_id, NULL::bigint AS recipient, n.created_at, n.data, o.count AS weight,
           CASE WHEN n.broadcast_id IS NOT NULL AND NOT EXISTS (
               SELECT FROM webhooks w WHERE w.account_id = n.account_id AND w.status = 'enabled' AND 'email.sent' = ANY (w.events)
           ) THEN 'email.queued' ELSE n.type END AS type
    FROM new n JOIN (SELECT email_id, count(*) FROM recipients WHERE barred IS NULL GROUP BY email_id) AS o USING (email_id)
    UNION ALL
    SELECT n.shard, n.account_id, n.email_id, uuid7_before(n.event_id, a.recipient), n.domain_id, a.recipient, n.created_at,
           told_of_suppression(a.barred), 1, 'email.suppressed'
    FROM new n JOIN recipients a USING (email_id) WHERE a.barred IS NOT NULL
), history AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, created_at, data FROM facts WHERE type <> 'email.queued'
), fresh AS (
    INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
    SELECT shard, account_id, email_id, event_id, domain_id, type, created_at, weight, CASE type WHEN 'email.queued' THEN 'email.sent' END
    FROM facts
), noticed AS (
    INSERT INTO notices (account_id, email_id, recipient, event_id, next_at)
    SELECT n.account_id, n.email_id, a.recipient, uuid7_before(n.event_id, a.recipient), n.created_at + interval '1 second'
    FROM new n JOIN recipients a USING (email_id) WHERE a.barred IS NOT NULL AND a.notify & {failure} <> 0
), kept AS (
    INSERT INTO messages (account_id, email_id, piece, bytes)
    SELECT account_id, email_id, 0, substring($2 FROM at + 1 FOR length) FROM new WHERE at IS NOT NULL
)
SELECT email_id, recipient::integer FROM recipients WHERE barred IS NOT NULL
