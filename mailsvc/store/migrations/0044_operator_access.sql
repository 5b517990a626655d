-- The operator's accesses to the content of accounts, with their reasons. The previous release does not look at it.
-- depends: 0043_single_sign_on

CREATE TABLE operator_access (
    account_id   uuid NOT NULL,
    id           uuid NOT NULL,
    operator     text NOT NULL,                               -- who opened it
    reason       text NOT NULL,
    opened_at    timestamptz NOT NULL,
    ends_at      timestamptz NOT NULL,
    ended_at     timestamptz,                                 -- when it was ended; null: it lasts until ends_at
    announced    boolean NOT NULL DEFAULT false,              -- whether the account's admins were mailed
    PRIMARY KEY (account_id, id)
);
-- One at a time: before another one is opened, one whose time has passed gets its ended_at.
CREATE UNIQUE INDEX operator_access_open ON operator_access (account_id) WHERE ended_at IS NULL;
CREATE INDEX operator_access_new ON operator_access (id) WHERE NOT announced;
