-- Destinations that take mail slowly for a time: one row for all processes of a region, and the reason of what waits for its turn.
-- depends: 0009_lanes

-- What a rule made of a provider's answer. `name` is a destination, or a provider and so all of its destinations.
CREATE TABLE slowdowns (
    region       text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    per_minute   double precision NOT NULL,                   -- emails, of all processes together
    reason       text NOT NULL,
    until        timestamptz NOT NULL,
    PRIMARY KEY (region, name)
);

-- As before, and what is due at a destination that is slowed down says so.
CREATE OR REPLACE FUNCTION waiting_at(moment timestamptz)
RETURNS TABLE (
    account_id uuid, email_id uuid, recipient smallint, address text, region text, destination text, status text, attempts smallint,
    reason text, next_at timestamptz, expires_at timestamptz
)
LANGUAGE sql STABLE
AS $$
SELECT q.account_id, q.email_id, q.recipient, q.address, q.region, q.destination,
       CASE WHEN q.lease IS NULL THEN q.status ELSE 'sending' END,
       q.attempts,
       CASE
           WHEN q.lease IS NOT NULL AND p.ended_at IS NOT NULL THEN 'The process that was sending it has ended; another takes it over.'
           WHEN q.lease IS NOT NULL AND p.id IS NOT NULL THEN 'Being sent now; if its process falls silent, another takes it over.'
           WHEN q.lease IS NOT NULL THEN NULL
           WHEN q.status = 'scheduled' THEN 'Scheduled by the sender.'
           WHEN a.until > moment AND a.until >= q.next_at THEN a.reason
           WHEN d.until > moment AND d.until >= q.next_at THEN d.reason
           WHEN q.next_at <= moment AND NOT EXISTS (
               SELECT FROM processes l
               WHERE l.ended_at IS NULL AND l.heartbeat_at > now() - interval '45 seconds' AND l.region = q.region AND 'delivery' = ANY (l.roles)
           ) THEN 'No process that delivers mail of the region ' || q.region || ' is running.'
           WHEN q.next_at <= moment AND s.reason IS NOT NULL THEN s.reason
           ELSE coalesce(q.reason, 'Waiting for a free connection to ' || q.destination || '.')
       END,
       CASE
           WHEN q.lease IS NOT NULL THEN greatest(coalesce(p.ended_at, p.heartbeat_at + interval '45 seconds'), moment)
           WHEN q.status = 'scheduled' THEN greatest(q.next_at, moment)
           ELSE greatest(least(greatest(q.next_at, d.until, a.until), q.expires_at), moment)
       END,
       q.expires_at
FROM queue q
LEFT JOIN LATERAL (
    SELECT h.reason, h.until FROM destinations h
    WHERE h.region = q.region AND h.name IN (q.destination, split_part(q.destination, '/', 1))
    ORDER BY h.until DESC LIMIT 1
) d ON true
LEFT JOIN slowdowns s ON s.region = q.region AND s.name = split_part(q.destination, '/', 1) AND s.until > moment
LEFT JOIN account_pauses a ON a.account_id = q.account_id
LEFT JOIN processes p ON p.id = q.lease
$$;
