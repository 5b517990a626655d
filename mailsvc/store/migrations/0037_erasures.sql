-- Erasures of addresses, and the suppressions that outlive them as keyed hashes.
-- depends: 0036_audit_chain

-- One erasure: how far it has come, and its certificate. The account is the nil UUID if it is for all accounts.
CREATE TABLE erasures (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    hash         bytea NOT NULL,                              -- HMAC-SHA-256 of the address in lower case
    key          smallint NOT NULL,                           -- the number of the encryption key that the hash is made with
    address      bytea,                                       -- encrypted; null: it is finished
    suppress     boolean NOT NULL,                            -- whether to suppress the address from now on
    origin       text NOT NULL,                               -- command, api, dashboard, journal
    requested_at timestamptz NOT NULL,
    finished_at  timestamptz,
    progress     jsonb NOT NULL DEFAULT '{}',                 -- {"step", "after"}: the last row that was looked at
    counts       jsonb NOT NULL DEFAULT '{}',                 -- {"erased", "kept", "waiting"}: how many, by place
    PRIMARY KEY (account_id, id)
);
CREATE INDEX erasures_open ON erasures (requested_at) WHERE finished_at IS NULL;
CREATE INDEX erasures_hash ON erasures (account_id, hash);

-- A suppression whose address was erased.
CREATE TABLE erased_suppressions (
    account_id   uuid NOT NULL,
    hash         bytea NOT NULL,                              -- HMAC-SHA-256 of the address in lower case
    key          smallint NOT NULL,                           -- the number of the encryption key that the hash is made with
    id           uuid NOT NULL,
    origin       text NOT NULL CHECK (origin IN ('bounce', 'complaint', 'manual')),
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (account_id, hash)
);
