-- Source addresses: the block lists that have them, what new ones send each day, and the pools of accounts and domains.
-- depends: 0029_abuse

-- One row for each address of a region that a process has or had lately.
CREATE TABLE sources (
    region       text COLLATE "C" NOT NULL,
    address      text COLLATE "C" NOT NULL,
    pool         text COLLATE "C" NOT NULL,                   -- empty: the default pool
    since        date,                                        -- it warms up from this day; null: it is warm
    seen_at      timestamptz NOT NULL,                        -- when a process last said that it has it
    checked_at   timestamptz,                                 -- when the block lists were asked last; null: ask them now
    listed       text[] NOT NULL DEFAULT '{}',                -- the block lists that have it: it sends nothing
    listed_at    timestamptz,                                 -- since when
    PRIMARY KEY (region, address)
);

-- Emails of a day that processes have reserved, while a source warms up. Processes reserve them in blocks.
CREATE TABLE source_days (
    region       text COLLATE "C" NOT NULL,
    address      text COLLATE "C" NOT NULL,
    provider     text COLLATE "C" NOT NULL,                   -- 'other': all destinations without a provider
    day          date NOT NULL,                               -- UTC
    taken        integer NOT NULL,
    granted      integer NOT NULL,                            -- of the last reservation
    PRIMARY KEY (region, day, address, provider)
);

-- The pool that mail is sent from; null: as the settings say. A domain's comes before its account's.
ALTER TABLE accounts ADD COLUMN pool text COLLATE "C";
ALTER TABLE domains ADD COLUMN pool text COLLATE "C";
CREATE INDEX accounts_by_pool ON accounts (pool) WHERE pool IS NOT NULL;
CREATE INDEX domains_by_pool ON domains (pool) WHERE pool IS NOT NULL;

-- A third state: no source address may send there now.
ALTER TABLE destinations DROP CONSTRAINT destinations_state_check;
ALTER TABLE destinations ADD CONSTRAINT destinations_state_check CHECK (state IN ('backoff', 'paused', 'source'));
