-- Several accounts may have the same domain name; only one may have it verified. Limits on adding domains, and claims.
-- depends: 0022_key_creator

ALTER TABLE domains ADD COLUMN lost_at timestamptz;           -- when another account took the name over; null: none did since it was verified
CREATE UNIQUE INDEX domains_account_name ON domains (account_id, name);
CREATE UNIQUE INDEX domains_holder ON domains (name) WHERE status = 'verified' OR trusted_at IS NOT NULL;
CREATE INDEX domains_name ON domains (name);

-- How many domains an account has added, deleted ones included, in the hour that began at `since`.
CREATE TABLE domain_adds (
    account_id   uuid PRIMARY KEY REFERENCES accounts,
    since        timestamptz NOT NULL,
    adds         integer NOT NULL
);

-- Claims of names that another account has verified. They stay when their domain is deleted, so that whoever asks is told.
CREATE TABLE domain_claims (
    id             uuid PRIMARY KEY,
    domain_id      uuid NOT NULL UNIQUE,                      -- the account's own domain of this name
    account_id     uuid NOT NULL REFERENCES accounts,
    name           text NOT NULL,                             -- A-labels, lower case
    region         text NOT NULL,
    token          text NOT NULL,                             -- what its TXT record has to contain
    status         text NOT NULL,                             -- pending, blocked, completed, superseded, canceled; expired by its time
    failure_reason text,                                      -- a sentence: why it does not go on
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL
);
CREATE INDEX domain_claims_open ON domain_claims (name) WHERE status IN ('pending', 'blocked');
CREATE INDEX domain_claims_account ON domain_claims (account_id, expires_at);
