-- The operator's console: who signs in to it, and the incidents on the status page. The previous release does not look at them.
-- depends: 0051_roles

CREATE TABLE operators (
    id               uuid PRIMARY KEY,
    email            text NOT NULL UNIQUE,                    -- lower case
    password         text,                                    -- Argon2id; null: the set-up is not finished, nobody signs in
    totp             bytea NOT NULL,                          -- encrypted secret of the authenticator app
    totp_step        bigint NOT NULL DEFAULT 0,               -- the 30 s step of the last code that was taken
    link             bytea UNIQUE,                            -- SHA-256 of the link for the set-up; null: it was used
    link_expires_at  timestamptz,
    created_at       timestamptz NOT NULL,
    signed_in_at     timestamptz
);

CREATE TABLE operator_sessions (
    hash             bytea PRIMARY KEY,                       -- SHA-256 of the cookie
    operator_id      uuid NOT NULL REFERENCES operators ON DELETE CASCADE,
    address          text NOT NULL,
    created_at       timestamptz NOT NULL,
    seen_at          timestamptz NOT NULL                     -- to the minute
);
CREATE INDEX operator_sessions_operator ON operator_sessions (operator_id);

CREATE TABLE incidents (
    id               uuid PRIMARY KEY,
    title            text NOT NULL,
    impact           text NOT NULL CHECK (impact IN ('maintenance', 'degraded', 'down')),
    components       text[] NOT NULL,
    begun_at         timestamptz NOT NULL,
    ended_at         timestamptz                              -- null: it continues
);
CREATE INDEX incidents_begun ON incidents (begun_at);

CREATE TABLE incident_notes (
    incident_id      uuid NOT NULL REFERENCES incidents ON DELETE CASCADE,
    id               uuid NOT NULL,
    at               timestamptz NOT NULL,
    text             text NOT NULL,
    PRIMARY KEY (incident_id, id)
);
