-- Accounts that move from one cell to another (store/cells/accounts). The previous release does not look at them.
-- depends: 0053_regions

CREATE TABLE account_moves (
    account_id       uuid PRIMARY KEY,
    phase            text NOT NULL CHECK (phase IN ('leaving', 'arriving', 'left')),
    cell             text NOT NULL,                           -- the other cell
    begun_at         timestamptz NOT NULL,
    moved_at         timestamptz,                             -- since when the account is in the other cell
    finished_at      timestamptz                              -- since when none of its rows are here
);

CREATE TABLE account_move_keys (                              -- API keys of accounts that have left this cell
    hash             bytea PRIMARY KEY,                       -- SHA-256 of the key, as in api_keys
    key_id           uuid NOT NULL,
    account_id       uuid NOT NULL,
    cell             text NOT NULL
);
CREATE INDEX account_move_keys_account ON account_move_keys (account_id);

CREATE TABLE account_arrivals (                               -- rows of an account that moves to this cell, until it has left the other
    account_id       uuid NOT NULL,
    number           bigint NOT NULL,                         -- the order in which they are inserted
    name             text NOT NULL,                           -- of the table
    content          jsonb NOT NULL,
    PRIMARY KEY (account_id, number)
);
