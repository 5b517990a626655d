-- More ways to prove who one is: identities at other services, and passkeys.
-- depends: 0010_dashboard

-- Who somebody is at another service. An address is no part of it: it may go from one person to another.
CREATE TABLE identities (
    issuer        text NOT NULL,                              -- the service, as it calls itself
    subject       text NOT NULL,                              -- the person, as that service calls them for good
    id            uuid NOT NULL UNIQUE,                       -- to name it without knowing it
    user_id       uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    provider      text NOT NULL,                              -- the name of its settings
    label         text NOT NULL,                              -- what people know it by, when it was connected
    created_at    timestamptz NOT NULL,
    used_at       timestamptz,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX identities_user ON identities (user_id);

CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    credential    bytea NOT NULL UNIQUE,                      -- what the authenticator calls it
    public_key    bytea NOT NULL,                             -- COSE
    sign_count    bigint NOT NULL,                            -- grows with each use, or is always 0
    backed_up     boolean NOT NULL,                           -- whether it is kept beyond one device
    name          text NOT NULL,
    created_at    timestamptz NOT NULL,
    used_at       timestamptz
);
CREATE INDEX passkeys_user ON passkeys (user_id);

-- Tickets that were used: what was signed for one use is taken once.
CREATE TABLE spent (
    hash          bytea PRIMARY KEY,                          -- SHA-256 of the ticket
    expires_at    timestamptz NOT NULL                        -- when the ticket would have ended by itself
);
CREATE INDEX spent_expiry ON spent (expires_at);

-- Attempts to sign in that did not succeed, counted for all processes.
CREATE TABLE sign_in_attempts (
    subject       bytea PRIMARY KEY,                          -- HMAC-SHA-256 of what they are counted by
    count         integer NOT NULL,
    last_at       timestamptz NOT NULL
);
CREATE INDEX sign_in_attempts_last ON sign_in_attempts (last_at);

CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
