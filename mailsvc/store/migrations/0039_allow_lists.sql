-- Allow-lists of networks, for API keys and for the dashboard. The previous release does not look at them.
-- depends: 0038_key_expiry

ALTER TABLE api_keys ADD COLUMN networks text[] NOT NULL DEFAULT '{}';           -- from which it can be used; empty: from any
ALTER TABLE accounts ADD COLUMN dashboard_networks text[] NOT NULL DEFAULT '{}'; -- from which the account's pages can be opened
