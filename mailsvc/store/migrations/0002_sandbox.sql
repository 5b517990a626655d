-- The development inbox. Filled by sandbox/ only, which production does not run.
-- depends: 0001_house

CREATE TABLE sandbox_emails (
    id           uuid PRIMARY KEY,                            -- the newest is the greatest
    account_id   uuid,                                        -- whose email it was; null: nobody's, shown to nobody
    email_id     uuid,                                        -- which one
    received_at  timestamptz NOT NULL,
    sender       text NOT NULL,                               -- the return path
    recipients   text[] NOT NULL,                             -- those of RCPT that were accepted
    tls          text,                                        -- version and cipher, null: in clear
    dkim         jsonb NOT NULL,                              -- [{"domain", "selector", "algorithm", "result", "reason"}]
    size         integer NOT NULL,
    message      bytea NOT NULL                               -- as received
);
CREATE INDEX sandbox_emails_account ON sandbox_emails (account_id, id);
CREATE INDEX sandbox_emails_sizes ON sandbox_emails (id DESC) INCLUDE (size);
