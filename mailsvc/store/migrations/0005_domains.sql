-- What was found in the DNS of a sending domain, when it is looked at again, and what happened to it.
-- depends: 0002_sandbox

ALTER TABLE domains
    ADD COLUMN sending boolean NOT NULL DEFAULT true,         -- whether its owner lets it send
    ADD COLUMN receiving boolean NOT NULL DEFAULT false,      -- whether its owner wants to receive by it
    ADD COLUMN delegated boolean NOT NULL DEFAULT false,      -- its DKIM names are CNAMEs to names that the operator serves
    ADD COLUMN records jsonb NOT NULL DEFAULT '[]',           -- what the last check found (store/domains.RecordState)
    ADD COLUMN advice jsonb NOT NULL DEFAULT '[]',            -- the same of what is only advised
    ADD COLUMN since timestamptz,                             -- pending: when it was asked for; verified: the first miss, null: none
    ADD COLUMN checks integer NOT NULL DEFAULT 0,             -- in a row that did not find everything
    ADD COLUMN checked_at timestamptz,
    ADD COLUMN next_check_at timestamptz;                     -- null: when somebody asks for it
CREATE INDEX domains_due ON domains (next_check_at) WHERE next_check_at IS NOT NULL;

-- States: published (new, does not sign before it was seen in DNS), signing, leaving (signs no more, still published), retired (its
-- private half is gone). Where DKIM names are delegated, the same few selectors take turns.
ALTER TABLE dkim_keys ADD COLUMN changed_at timestamptz;      -- when it came into its state, null: when it was made
ALTER TABLE dkim_keys DROP CONSTRAINT dkim_keys_domain_id_selector_key;
CREATE UNIQUE INDEX dkim_keys_selector ON dkim_keys (domain_id, selector) WHERE state <> 'retired';

-- What happened to a domain, for people. Goes with it; what its account was told of it stays among the events.
CREATE TABLE domain_history (
    id           uuid PRIMARY KEY,
    domain_id    uuid NOT NULL REFERENCES domains ON DELETE CASCADE,
    at           timestamptz NOT NULL,
    what         text NOT NULL                                -- a sentence
);
CREATE INDEX domain_history_domain ON domain_history (domain_id, id);
