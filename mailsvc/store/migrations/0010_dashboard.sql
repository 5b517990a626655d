-- People: who may see and change what belongs to an account, how they prove who they are, and what they did.
-- depends: 0002_sandbox

-- A person. One person may be a member of several accounts.
CREATE TABLE users (
    id            uuid PRIMARY KEY,
    email         text NOT NULL UNIQUE,                       -- lower case
    name          text NOT NULL DEFAULT '',
    password      text,                                       -- Argon2id in its PHC form; null: none was chosen yet
    totp          bytea,                                      -- sealed secret of an authenticator app, null: none
    totp_at       timestamptz,                                -- when its first code was given; null: it does not count yet
    totp_step     bigint NOT NULL DEFAULT 0,                  -- the 30 s step of the last code that was taken: none is taken twice
    created_at    timestamptz NOT NULL,
    signed_in_at  timestamptz                                 -- the last time
);

CREATE TABLE members (
    account_id    uuid NOT NULL REFERENCES accounts ON DELETE CASCADE,
    user_id       uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    role          text NOT NULL CHECK (role IN ('admin', 'member')),
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, user_id)
);
CREATE INDEX members_user ON members (user_id);

ALTER TABLE accounts ADD COLUMN mfa_since timestamptz;        -- since when its members must have a second factor; null: they need not

-- A link that was sent by mail, or given out by an operator. Only its SHA-256 is kept, and it works once.
CREATE TABLE links (
    hash          bytea PRIMARY KEY,
    purpose       text NOT NULL CHECK (purpose IN ('sign-up', 'reset', 'sign-in', 'invite')),
    email         text NOT NULL,                              -- whom it was sent to
    account_id    uuid REFERENCES accounts ON DELETE CASCADE, -- invite: where to; else null
    role          text,                                       -- invite: as what; else null
    created_by    uuid REFERENCES users ON DELETE SET NULL,   -- invite: who asked; else null
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    id            uuid NOT NULL UNIQUE                        -- to name it without knowing it
);
CREATE INDEX links_account ON links (account_id) WHERE purpose = 'invite';
CREATE INDEX links_expiry ON links (expires_at);

-- A browser that is signed in. Only the SHA-256 of its cookie is kept.
CREATE TABLE sessions (
    hash          bytea PRIMARY KEY,
    id            uuid NOT NULL UNIQUE,                       -- to name it without knowing it
    user_id       uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    account_id    uuid REFERENCES accounts ON DELETE CASCADE, -- whose pages it shows; null: of none
    stage         text NOT NULL CHECK (stage IN ('password', 'whole')),  -- password: the second factor is still asked for
    address       text NOT NULL,                              -- where it began
    agent         text NOT NULL,                              -- the browser, as it calls itself
    created_at    timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL,                       -- to the minute
    proved_at     timestamptz NOT NULL,                       -- when the password, or another proof, was last given
    expires_at    timestamptz NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

-- Ten for each person with a second factor; one that was used is gone.
CREATE TABLE recovery_codes (
    user_id       uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    hash          bytea NOT NULL,                             -- HMAC-SHA-256 of the code under a secret that is not in the database
    PRIMARY KEY (user_id, hash)
);

-- What was done, by whom, from where. Rows are added and never changed.
CREATE TABLE audit (
    account_id    uuid NOT NULL,
    id            uuid NOT NULL,                              -- the newest is the greatest
    at            timestamptz NOT NULL,
    user_id       uuid,                                       -- null: not a member, such as a sign-in that failed
    actor         text NOT NULL,                              -- their address at that time
    address       text NOT NULL,                              -- the network address
    action        text NOT NULL,                              -- key.created, member.removed, …
    subject       text NOT NULL,                              -- what it was done to
    PRIMARY KEY (account_id, id)
);

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The audit log is append-only.';
END
$$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
