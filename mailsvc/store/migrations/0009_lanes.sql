-- Where a recipient was tried last, pauses of accounts, policies for TLS and what came of them.
-- depends: 0002_sandbox

ALTER TABLE queue
    ADD COLUMN host   text,                                   -- the mail exchanger that had it last, preferred when nobody knows whether it took it
    ADD COLUMN source text,                                   -- our address that it was tried from; the next attempt comes from there too
    ADD COLUMN faults smallint NOT NULL DEFAULT 0;            -- attempts that failed on our side; after some it is set aside

-- An account whose mail waits by the operator's word. What is claimed of it meanwhile goes back until then.
CREATE TABLE account_pauses (
    account_id   uuid PRIMARY KEY,
    reason       text NOT NULL,
    until        timestamptz NOT NULL                         -- the year 9999: until somebody resumes it
);

-- MTA-STS policies (RFC 8461) that were fetched, for all processes. What is expired may be deleted.
CREATE TABLE mta_sts (
    domain       text COLLATE "C" PRIMARY KEY,
    policy_id    text NOT NULL,                               -- of the TXT record that announced it
    policy       text NOT NULL,                               -- as it was fetched
    fetched_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL                         -- fetched_at and its max_age
);

-- What became of TLS with others, by day: the figures of a TLS report (RFC 8460 §4.4).
CREATE TABLE tls_results (
    day          date NOT NULL,                               -- UTC
    domain       text COLLATE "C" NOT NULL,                   -- of the policy: the recipients' domain or, with DANE, the host
    policy       text COLLATE "C" NOT NULL,                   -- sts, tlsa, no-policy-found
    host         text COLLATE "C" NOT NULL,                   -- the mail exchanger; empty: it did not come to a connection
    result       text COLLATE "C" NOT NULL,                   -- success, or a result type of RFC 8460 §4.3
    sessions     bigint NOT NULL,
    PRIMARY KEY (day, domain, policy, host, result)
);

-- As before, and a provider's hold counts for all of its destinations ("provider/hosts"), and an account's pause.
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
LEFT JOIN account_pauses a ON a.account_id = q.account_id
LEFT JOIN processes p ON p.id = q.lease
$$;
