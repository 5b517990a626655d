-- Contacts are found by the hash of their address, so that the link of an old email works after a contact was deleted and added again.
-- depends: 0027_attempt_source

ALTER TABLE contacts ADD COLUMN hash bytea NOT NULL;          -- as in unsubscribes: the first 16 bytes of an HMAC-SHA-256
CREATE UNIQUE INDEX contacts_hash ON contacts (account_id, hash);
