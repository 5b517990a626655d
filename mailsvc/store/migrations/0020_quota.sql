-- Plans of accounts, and how much of them was given out.
-- depends: 0019_retention

ALTER TABLE accounts ADD COLUMN plan text;                    -- a name in plans.toml, null: the setting's default

-- What of a period's recipients was given out to processes, in blocks. One row for each account and kind of period.
CREATE TABLE quota (
    account_id   uuid NOT NULL,
    period       text NOT NULL CHECK (period IN ('day', 'month')),
    starts       date NOT NULL,                               -- first day of the period that is counted, UTC
    most         bigint NOT NULL,                             -- the limit when a block was last asked for
    taken        bigint NOT NULL,                             -- given out and not given back
    granted      bigint NOT NULL,                             -- the newest block
    warned       smallint NOT NULL DEFAULT 0,                 -- the percentage that the account was told of in this period
    PRIMARY KEY (account_id, period)
) WITH (fillfactor = 50);
