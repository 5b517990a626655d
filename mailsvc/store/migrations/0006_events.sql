-- The word back: webhooks with what they were sent, and the addresses that an account must not write to.
-- depends: 0002_sandbox

ALTER TABLE accounts ADD COLUMN notify text;                  -- the address that this service itself writes to; null: none

-- A customer's endpoint. It hears of what happened after it was made.
CREATE TABLE webhooks (
    id           uuid PRIMARY KEY,
    account_id   uuid NOT NULL REFERENCES accounts,
    url          text NOT NULL,
    events       text[] NOT NULL,                             -- types that it hears of
    secret       bytea NOT NULL,                              -- what signs, sealed with AES-GCM (store/seal)
    former       bytea,                                       -- the secret before a rotation, sealed; null: none
    former_until timestamptz,                                 -- how long that one signs too
    status       text NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled')),
    disabled_why text,                                        -- a sentence, when it was not its owner who disabled it
    failing_since timestamptz,                                -- the first failure since the last success; null: the last attempt was one
    failed_at    timestamptz,                                 -- the newest failure
    failed_with  integer,                                     -- its HTTP status, 0: no answer
    hold_until   timestamptz,                                 -- nothing is sent before, by its own word (Retry-After)
    warned_at    timestamptz,                                 -- when its account was told that it fails
    told_at      timestamptz,                                 -- when its account was told that it was disabled
    created_at   timestamptz NOT NULL
);
CREATE INDEX webhooks_account ON webhooks (account_id, id);
CREATE INDEX webhooks_failing ON webhooks (failing_since) WHERE failing_since IS NOT NULL;

-- What an endpoint is told: one event, whose id names the message on all attempts.
CREATE TABLE webhook_messages (
    account_id   uuid NOT NULL,
    webhook_id   uuid NOT NULL,
    event_id     uuid NOT NULL,
    email_id     uuid NOT NULL,                               -- where the event is filed
    type         text NOT NULL,
    created_at   timestamptz NOT NULL,                        -- when the event happened
    status       text CHECK (status IN ('success', 'failed')),  -- null: it still waits
    payload      jsonb,                                       -- of a test event, which stands nowhere else
    PRIMARY KEY (account_id, webhook_id, event_id)
) PARTITION BY RANGE (event_id);

-- The messages that wait for their next attempt. next_at of one that is being sent is when another process may send it.
CREATE TABLE webhook_outbox (
    webhook_id   uuid NOT NULL,
    event_id     uuid NOT NULL,
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    tries        smallint NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL,
    PRIMARY KEY (webhook_id, event_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX webhook_outbox_due ON webhook_outbox (webhook_id, next_at);

-- One POST to an endpoint.
CREATE TABLE webhook_attempts (
    account_id   uuid NOT NULL,
    webhook_id   uuid NOT NULL,
    event_id     uuid NOT NULL,
    attempt_id   uuid NOT NULL,
    status       integer NOT NULL,                            -- HTTP status, 0: no answer
    response     text NOT NULL,                               -- the first 1 kB of the answer's body, or why there was none
    seconds      real NOT NULL,
    started_at   timestamptz NOT NULL,
    next_at      timestamptz,                                 -- when the next one is due, null: there is none
    PRIMARY KEY (account_id, webhook_id, event_id, attempt_id)
) PARTITION BY RANGE (event_id);

-- An address that an account must not write to.
CREATE TABLE suppressions (
    id           uuid PRIMARY KEY,
    account_id   uuid NOT NULL,
    address      text COLLATE "C" NOT NULL,                   -- in lower case: what recipients are compared with
    email        text NOT NULL,                               -- as it was given
    origin       text NOT NULL CHECK (origin IN ('bounce', 'complaint', 'manual')),
    source_id    uuid,                                        -- the email that caused it, null: none did
    reason       text,                                        -- the reply or report that caused it, null: none did
    created_at   timestamptz NOT NULL,
    UNIQUE (account_id, address)
);
CREATE INDEX suppressions_account ON suppressions (account_id, id);

-- What a recipient's email.suppressed event tells.
CREATE FUNCTION told_of_suppression(origin text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
SELECT jsonb_build_object('origin', origin, 'reason', 'The address is on the suppression list of the account: ' || CASE origin
    WHEN 'bounce' THEN 'mail to it bounced for good.'
    WHEN 'complaint' THEN 'its owner complained about mail.'
    ELSE 'it was put there by hand.'
END)
$$;

-- An id of the millisecond before that of `id`, another one for each `n`: for what is told before the event that has an id already.
CREATE FUNCTION uuid7_before(id uuid, n bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$
SELECT (
    lpad(to_hex(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint - 1), 12, '0')
    || '7' || substr(md5(id::text || n), 1, 3) || '8' || substr(md5(id::text || n), 4, 15)
)::uuid
$$;

-- The data of a suppression.* event.
CREATE FUNCTION told_of(s suppressions) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
SELECT jsonb_build_object('id', s.id, 'email', s.email, 'origin', s.origin, 'source_id', s.source_id,
                          'created_at', to_char(s.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
$$;
