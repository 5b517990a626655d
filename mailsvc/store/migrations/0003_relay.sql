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

-- What the submitter of a mail wants to be told of: 1 success, 2 failure, 4 delay (NOTIFY of RCPT); null or 0: nothing.
ALTER TABLE queue ADD COLUMN notify smallint;

-- An event that the submitter of a mail is still to be told of by mail. A row goes when that mail is accepted.
CREATE TABLE notices (
    account_id   uuid NOT NULL,
    email_id     uuid NOT NULL,
    recipient    smallint NOT NULL,
    event_id     uuid NOT NULL,
    report       uuid,                                        -- the mail that tells of it; null: nobody has begun one
    next_at      timestamptz NOT NULL,                        -- not to be looked at before
    PRIMARY KEY (email_id, recipient, event_id)
);
CREATE INDEX notices_next ON notices (next_at);
