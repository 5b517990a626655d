-- The tables of the first release. Ids are UUIDv7 (RFC 9562 §5.7) unless said otherwise, times are UTC.
-- What grows without end is range-partitioned by the day inside email_id; partitions are made by store/partitions.
-- depends:

-- A customer; owns everything below.
CREATE TABLE accounts (
    id          uuid PRIMARY KEY,
    number      integer GENERATED ALWAYS AS IDENTITY UNIQUE,  -- short form, for return-path addresses
    name        text NOT NULL,
    rate_limit  integer CHECK (rate_limit > 0),               -- requests a second; null: the setting's default
    suspended_at timestamptz,                                 -- since when it may not send; null: it may
    created_at  timestamptz NOT NULL
);

-- A sending domain. A name belongs to one account at a time.
CREATE TABLE domains (
    id          uuid PRIMARY KEY,
    account_id  uuid NOT NULL REFERENCES accounts,
    name        text NOT NULL UNIQUE,                         -- A-labels, lower case, no trailing dot
    region      text NOT NULL,
    status      text NOT NULL DEFAULT 'not_started',          -- wire status: not_started, pending, verified, failed
    trusted_at  timestamptz,                                  -- the operator's word instead of DNS; null: not given
    return_path text NOT NULL DEFAULT 'send',                 -- label under the domain that MAIL FROM uses
    signs_with  text[] NOT NULL DEFAULT '{rsa,ed25519}',      -- which of its DKIM keys sign
    tls         text NOT NULL DEFAULT 'opportunistic',        -- opportunistic, enforced
    created_at  timestamptz NOT NULL
);
CREATE INDEX domains_account ON domains (account_id, id);

-- A DKIM key pair of a domain; a selector is never used twice.
CREATE TABLE dkim_keys (
    id          uuid PRIMARY KEY,
    domain_id   uuid NOT NULL REFERENCES domains ON DELETE CASCADE,
    selector    text NOT NULL,
    algorithm   text NOT NULL CHECK (algorithm IN ('rsa', 'ed25519')),
    public_key  text NOT NULL,                                -- the p= value to publish, base64
    sealed_key  bytea NOT NULL,                               -- PKCS#8 DER, sealed with AES-GCM (store/seal)
    state       text NOT NULL DEFAULT 'signing',              -- signing, published, retired
    created_at  timestamptz NOT NULL,
    UNIQUE (domain_id, selector)
);

-- A caller's credential; only its SHA-256 is kept.
CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    account_id   uuid NOT NULL REFERENCES accounts,
    name         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,
    hint         text NOT NULL,                               -- the first characters, to recognise it by
    permission   text NOT NULL CHECK (permission IN ('full_access', 'sending_access')),
    domain_id    uuid REFERENCES domains ON DELETE CASCADE,   -- null: every domain of the account
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX api_keys_account ON api_keys (account_id, id);

-- One running process. Its id is the fencing number of all of its leases and is never used again.
CREATE TABLE processes (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    region       text NOT NULL,
    roles        text[] NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),          -- the database's clock, so that skew between machines does not matter
    ended_at     timestamptz                                  -- set at shutdown, or when others took its leases over
);
CREATE INDEX processes_live ON processes (heartbeat_at) WHERE ended_at IS NULL;

-- What the API or SMTP accepted. Never updated.
CREATE TABLE emails (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    source       text NOT NULL,                               -- api, smtp, system
    key_id       uuid,                                        -- the API key that sent it
    domain_id    uuid NOT NULL,
    message_id   text NOT NULL,                               -- with angle brackets
    sender       text NOT NULL,                               -- From, as given
    to_          text[] NOT NULL,                             -- header addresses, as given
    cc           text[] NOT NULL,
    bcc          text[] NOT NULL,
    reply_to     text[] NOT NULL,
    recipients   text[] NOT NULL,                             -- envelope addresses; a recipient's number is its index from 0
    subject      text NOT NULL,
    tags         jsonb,                                       -- [{"name","value"}], null: none
    headers      jsonb,                                       -- custom headers {"name": "value"}, null: none
    envelope     jsonb,                                       -- MAIL and RCPT parameters of a submission, null: none
    size         integer NOT NULL,                            -- octets of the message
    bulk         boolean NOT NULL,                            -- waits behind transactional mail
    scheduled_at timestamptz,                                 -- first asked for; the newest email.scheduled event has the present one; null: at once
    PRIMARY KEY (account_id, email_id)
) PARTITION BY RANGE (email_id);

-- The RFC 5322 bytes of an email in pieces of at most 512 kB, in order. Piece -1, when there is one, holds the
-- DKIM-Signature fields of the first attempt; all attempts send piece -1 and then the others.
CREATE TABLE messages (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    piece        smallint NOT NULL,
    bytes        bytea NOT NULL,
    PRIMARY KEY (account_id, email_id, piece)
) PARTITION BY RANGE (email_id);

-- lz4 where the server has it, else no compression: pglz costs more time than all the rest of storing a message.
-- Partitions made later take it over.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE messages ALTER COLUMN bytes SET COMPRESSION lz4;
    ELSE
        ALTER TABLE messages ALTER COLUMN bytes SET STORAGE EXTERNAL;
    END IF;
END
$$;

-- A fact about an email or one of its recipients. Append-only. Ids grow with time, so the newest event of an email has the greatest.
CREATE TABLE events (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    event_id     uuid NOT NULL,
    recipient    smallint,                                    -- null: the email as a whole
    type         text NOT NULL,                               -- email.sent, email.delivered, …
    at           timestamptz NOT NULL,
    data         jsonb,                                       -- what the type has to tell, null: nothing
    PRIMARY KEY (account_id, email_id, event_id)
) PARTITION BY RANGE (email_id);

-- One try over SMTP, for one or more recipients of an email.
CREATE TABLE attempts (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    attempt_id   uuid NOT NULL,
    recipients   smallint[] NOT NULL,
    outcomes     text[] NOT NULL,                             -- parallel: delivered, deferred, bounced, uncertain
    replies      text[] NOT NULL,                             -- parallel: the reply or the reason
    host         text,                                        -- the mail exchanger's name, null: none was reached
    address      text,                                        -- host:port that answered
    tls          text,                                        -- version and cipher, null: in clear
    started_at   timestamptz NOT NULL,
    seconds      real NOT NULL,
    transcript   text NOT NULL,                               -- commands and replies, no body
    PRIMARY KEY (account_id, email_id, attempt_id)
) PARTITION BY RANGE (email_id);

-- What waits. A row goes when its recipient reaches a final state.
-- Text that is only compared byte by byte is COLLATE "C", which makes its indexes cheaper.
CREATE TABLE queue (
    email_id     uuid NOT NULL,
    recipient    smallint NOT NULL,
    account_id   uuid NOT NULL,
    domain_id    uuid NOT NULL,
    region       text COLLATE "C" NOT NULL,
    address      text NOT NULL,
    destination  text COLLATE "C" NOT NULL,                   -- sorted MX hosts joined by a space, or the domain until a route is known
    status       text COLLATE "C" NOT NULL                    -- with a lease: sending
                 CHECK (status IN ('scheduled', 'queued', 'delayed', 'uncertain')),
    bulk         boolean NOT NULL,
    attempts     smallint NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    reason       text,                                        -- why it waits: its last reply or our own sentence; null: nothing of its own
    lease        bigint,                                      -- processes.id of who holds it, null: nobody
    PRIMARY KEY (email_id, recipient)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- A row is in one of the first three; one that is born leased and delivered at once is in queue_leased alone.
CREATE INDEX queue_ready ON queue (region, destination, bulk, next_at) WHERE lease IS NULL AND status <> 'scheduled';
CREATE INDEX queue_scheduled ON queue (next_at) WHERE lease IS NULL AND status = 'scheduled';
CREATE INDEX queue_leased ON queue (lease) WHERE lease IS NOT NULL;
CREATE INDEX queue_expiry ON queue (expires_at) WHERE lease IS NULL;

-- Why a destination as a whole does not take mail; no row, or one whose time is over: it does.
CREATE TABLE destinations (
    region       text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    state        text NOT NULL CHECK (state IN ('backoff', 'paused')),  -- by failure; by the operator or a provider rule
    reason       text NOT NULL,
    until        timestamptz NOT NULL,                        -- the year 9999 or 'infinity': until somebody resumes it
    failures     integer NOT NULL,                            -- connections in a row that failed
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (region, name)
);

-- The answer that a repeated request gets. An expired row counts as absent.
CREATE TABLE idempotency (
    account_id   uuid NOT NULL,
    endpoint     text NOT NULL,                               -- POST /emails, POST /emails/batch, smtp
    key          text NOT NULL,
    fingerprint  bytea NOT NULL,                              -- SHA-256 of the canonical request
    answer       json NOT NULL,                               -- what was answered, without the status; json keeps it as it was
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (account_id, endpoint, key)
);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

-- Committed events that the ledger has not numbered yet. Without an index: it is read whole, and it is short.
CREATE TABLE fresh_events (
    shard        smallint NOT NULL,                           -- 0 to 15, by account: what one ledger takes at a time
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    event_id     uuid NOT NULL,
    domain_id    uuid NOT NULL,
    type         text NOT NULL,
    at           timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0.0,
        autovacuum_vacuum_insert_threshold = 100000);

-- The order of an account's events, without gaps.
CREATE TABLE event_log (
    account_id   uuid NOT NULL,
    sequence     bigint NOT NULL,
    email_id     uuid NOT NULL,
    event_id     uuid NOT NULL,
    PRIMARY KEY (account_id, sequence, email_id)
) PARTITION BY RANGE (email_id);

-- The last number given to an event of an account.
CREATE TABLE event_sequences (
    account_id   uuid PRIMARY KEY,
    last         bigint NOT NULL
);

-- Events counted by hour, for metrics and usage.
CREATE TABLE rollups (
    account_id   uuid NOT NULL,
    hour         timestamptz NOT NULL,
    domain_id    uuid NOT NULL,
    type         text NOT NULL,
    count        bigint NOT NULL,
    PRIMARY KEY (account_id, hour, domain_id, type)
);

-- Why every recipient that waits does so, and when something happens next. `moment` is the present for all that
-- mail waits for; the life of a process is told by the database's own clock.
CREATE FUNCTION waiting_at(moment timestamptz)
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
           ELSE greatest(least(greatest(q.next_at, d.until), q.expires_at), moment)
       END,
       q.expires_at
FROM queue q
LEFT JOIN destinations d ON d.region = q.region AND d.name = q.destination
LEFT JOIN processes p ON p.id = q.lease
$$;

CREATE VIEW waiting AS SELECT * FROM waiting_at(now());
