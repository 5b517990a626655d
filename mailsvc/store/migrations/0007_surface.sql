-- What the API tells besides emails: which requests were made, how often, and what became of the mail by the hour.
-- depends: 0001_house

-- The requests of an account. Partitioned by the day inside log_id; made by store/partitions, dropped when they are too old.
CREATE TABLE request_log (
    account_id   uuid NOT NULL,
    log_id       uuid NOT NULL,                               -- UUIDv7 of when it was answered
    key_id       uuid,                                        -- the API key that called
    method       text NOT NULL,
    path         text NOT NULL,                               -- without the query
    status       smallint NOT NULL,                           -- 499: the client hung up before there was an answer
    user_agent   text,
    milliseconds real NOT NULL,
    request_body text,                                        -- JSON without secrets and attachments, null: none or unreadable
    response_body text,                                       -- likewise
    PRIMARY KEY (account_id, log_id)
) PARTITION BY RANGE (log_id);
CREATE INDEX request_log_errors ON request_log (account_id, log_id) WHERE status >= 400;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE request_log ALTER COLUMN request_body SET COMPRESSION lz4, ALTER COLUMN response_body SET COMPRESSION lz4;
    END IF;
END
$$;

-- How much of its rate limit an account has given out in the present second, when several processes share it. Worth nothing after that
-- second, so a crash may empty it.
CREATE UNLOGGED TABLE rate_windows (
    account_id   uuid PRIMARY KEY,
    second       bigint NOT NULL,                             -- of the database's clock
    taken        integer NOT NULL,
    granted      integer NOT NULL                             -- the newest block
) WITH (fillfactor = 50);

-- The ledger counts recipients, not events: an email that is sent to three people counts three. And it counts bounces by their kind.
ALTER TABLE fresh_events
    ADD COLUMN weight smallint NOT NULL DEFAULT 1,            -- recipients that the event tells of
    ADD COLUMN kind   text;                                   -- what it is counted as; null: its type
COMMENT ON COLUMN rollups.type IS 'An event''s type, with bounces as email.bounced.permanent, .transient and .undetermined';
COMMENT ON COLUMN rollups.count IS 'Recipients that such events told of';
