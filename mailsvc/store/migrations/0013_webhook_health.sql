-- Which endpoints are known to be well: those that are not do not take all connections from them.
-- depends: 0006_events

ALTER TABLE webhooks ADD COLUMN took_at timestamptz;          -- about when it took a message last, to a minute; null: it never did
