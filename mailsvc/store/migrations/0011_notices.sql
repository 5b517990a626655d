-- What another server told of a recipient, to be told to whoever handed in the mail.
-- depends: 0003_relay

-- Null: the event tells. A row with it stays after it was told (next_at is infinity), so that the same is told once; it is swept after a month.
ALTER TABLE notices ADD COLUMN told jsonb;

CREATE INDEX notices_report ON notices (report);
