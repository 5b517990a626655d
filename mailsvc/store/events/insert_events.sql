-- Events of any kind: in their history, for the event ledger, and as notices for submitters who requested them.
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s) AS x(
        shard smallint, account_id uuid, email_id uuid, event_id uuid, domain_id uuid, recipient smallint, type text,
        at timestamptz, data jsonb, weight smallint, notify smallint
    )
), told AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, at, data FROM new
), noticed AS (
    {insert_notices}
)
INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
SELECT shard, account_id, email_id, event_id, domain_id, type, at, weight,
       CASE WHEN type = 'email.bounced' THEN type || '.' || lower(data ->> 'type') END
FROM new
