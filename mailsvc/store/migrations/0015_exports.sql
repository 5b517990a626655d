-- Files that people take away, how far each has got, and SMTP sessions in which something was refused.
-- depends: 0003_relay 0009_lanes 0010_dashboard

-- A file that is being written to somebody's browser, or was. For showing how far it has got, whichever process is asked.
CREATE TABLE exports (
    account_id    uuid NOT NULL REFERENCES accounts ON DELETE CASCADE,
    id            uuid NOT NULL,
    kind          text NOT NULL,                              -- emails, logs
    state         text NOT NULL CHECK (state IN ('running', 'done', 'stopped')),  -- stopped: whoever took it left, or it failed
    rows          bigint NOT NULL DEFAULT 0,                  -- so far
    reached       timestamptz,                                -- the time of the last of them; null: there is none yet
    begun_at      timestamptz NOT NULL,
    told_at       timestamptz NOT NULL,                       -- the last word of the process that writes it
    PRIMARY KEY (account_id, id)
);

CREATE INDEX receipts_refused ON receipts (account_id, receipt_id) WHERE refusals > 0;
