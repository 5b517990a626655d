WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1) AS x(
        account_id uuid, email_id uuid, created_at timestamptz, source text, key_id uuid, domain_id uuid, message_id text, sender text,
        to_ text[], cc text[], bcc text[], reply_to text[], recipients text[], subject text, tags jsonb, headers jsonb, envelope jsonb,
        size integer, bulk boolean, scheduled_at timestamptz, expires_at timestamptz, region text, destinations text[], leases bigint[],
        notify smallint[],
        event_id uuid, type text, data jsonb, shard smallint, at integer)
), stored AS (
    INSERT INTO emails (account_id, email_id, created_at, source, key_id, domain_id, message_id, sender, to_, cc, bcc, reply_to,
                        recipients, subject, tags, headers, envelope, size, bulk, scheduled_at)
    SELECT account_id, email_id, created_at, source, key_id, domain_id, message_id, sender, to_, cc, bcc, reply_to,
           recipients, subject, tags, headers, envelope, size, bulk, scheduled_at
    FROM new
), recipients AS MATERIALIZED (
    SELECT n.email_id, r.number - 1 AS recipient, n.account_id, n.domain_id, n.region, r.address, r.destination,
           CASE WHEN n.scheduled_at IS NULL THEN 'queued' ELSE 'scheduled' END AS status,
           n.bulk, coalesce(n.scheduled_at, n.created_at) AS next_at, n.expires_at, r.lease, r.notify,
           CASE WHEN n.scheduled_at IS NULL THEN (
               SELECT s.origin FROM suppressions s WHERE s.account_id = n.account_id AND s.address = lower(r.address)
           ) END AS barred
    FROM new n,
         unnest(n.recipients, n.destinations, n.leases, n.notify) WITH ORDINALITY AS r(address, destination, lease, notify, number)
), queued AS (
    INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease,
                       notify)
    SELECT email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, lease, notify
    FROM recipients WHERE barred IS NULL
), facts AS MATERIALIZED (
    SELECT n.shard, n.account_id, n.email_id, n.event_id, n.domain_id, NULL::bigint AS recipient, n.type, n.created_at, n.data,
           o.count AS weight
    FROM new n JOIN (SELECT email_id, count(*) FROM recipients WHERE barred IS NULL GROUP BY email_id) AS o USING (email_id)
    UNION ALL
    SELECT n.shard, n.account_id, n.email_id, uuid7_before(n.event_id, a.recipient), n.domain_id, a.recipient, 'email.suppressed',
           n.created_at, told_of_suppression(a.barred), 1
    FROM new n JOIN recipients a USING (email_id) WHERE a.barred IS NOT NULL
), history AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, created_at, data FROM facts
), fresh AS (
    INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight)
    SELECT shard, account_id, email_id, event_id, domain_id, type, created_at, weight FROM facts
), noticed AS (
    INSERT INTO notices (account_id, email_id, recipient, event_id, next_at)
    SELECT n.account_id, n.email_id, a.recipient, uuid7_before(n.event_id, a.recipient), n.created_at + interval '1 second'
    FROM new n JOIN recipients a USING (email_id) WHERE a.barred IS NOT NULL AND a.notify & {failure} <> 0
), kept AS (
    INSERT INTO messages (account_id, email_id, piece, bytes)
    SELECT account_id, email_id, 0, substring($2 FROM at + 1 FOR size) FROM new WHERE at IS NOT NULL
)
SELECT email_id, recipient::integer FROM recipients WHERE barred IS NOT NULL
