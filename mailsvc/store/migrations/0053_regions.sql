-- The home region of accounts. The previous release does not look at it.
-- depends: 0052_console

ALTER TABLE accounts
    ADD COLUMN home_region text,                              -- null: the region of the process that adds a domain
    ADD COLUMN pinned boolean NOT NULL DEFAULT false;         -- whether all its domains have to be in that region
ALTER TABLE accounts ADD CONSTRAINT accounts_pinned_check CHECK (NOT pinned OR home_region IS NOT NULL);
