-- What admins were told of domains that fail. The previous release does not look at it.
-- depends: 0055_compressed

ALTER TABLE domains ADD COLUMN notified timestamptz;          -- the `since` or `lost_at` that they were told of last
CREATE INDEX domains_since ON domains (since) WHERE since IS NOT NULL;
CREATE INDEX domains_lost ON domains (lost_at) WHERE lost_at IS NOT NULL;
