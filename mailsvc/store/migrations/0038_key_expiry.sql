-- API keys that expire. The previous release does not look at it.
-- depends: 0037_erasures

ALTER TABLE api_keys ADD COLUMN expires_at timestamptz;        -- when it stops working; null: never
