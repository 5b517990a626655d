-- The SMTP relay: what was said in a session.
-- depends: 0002_sandbox

-- One session in which somebody logged in. Written at its end.
CREATE TABLE receipts (
    account_id   uuid NOT NULL,
    receipt_id   uuid NOT NULL,                               -- UUIDv7 of the session's end
    key_id       uuid NOT NULL,                               -- the API key that logged in
    opened_at    timestamptz NOT NULL,
    closed_at    timestamptz NOT NULL,
    port         integer NOT NULL,                            -- of ours
    tls          text NOT NULL,                               -- version and cipher
    mails        integer NOT NULL,                            -- accepted
    refusals     integer NOT NULL,                            -- replies of 4yz and 5yz
    transcript   text NOT NULL,                               -- commands and replies: no bodies, no passwords
    PRIMARY KEY (account_id, receipt_id)
) PARTITION BY RANGE (receipt_id);
