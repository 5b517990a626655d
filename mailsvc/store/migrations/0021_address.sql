-- Addresses that people want to have from now on, until the link that was sent there is followed.
-- depends: 0020_quota

CREATE TABLE address_changes (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,  -- a new one takes the place of the last
    hash          bytea NOT NULL UNIQUE,                      -- SHA-256 of the link's secret
    email         text NOT NULL,                              -- lower case; perhaps somebody else's: then nobody gets the link
    expires_at    timestamptz NOT NULL
);
CREATE INDEX address_changes_expiry ON address_changes (expires_at);
