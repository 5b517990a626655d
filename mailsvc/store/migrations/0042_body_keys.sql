-- Messages that are encrypted with a key of their account. The previous release cannot read them: an account is switched on only while
-- all processes have this release.
-- depends: 0041_minimization

-- One key per account. It is also encrypted with the account's file in secrets.body_keys, which no backup of this database has.
CREATE TABLE body_keys (
    account_id   uuid PRIMARY KEY,
    key          bytea NOT NULL,                              -- encrypted (store/encryption/body_keys.py)
    created_at   timestamptz NOT NULL
);

ALTER TABLE accounts ADD COLUMN encrypt_bodies boolean NOT NULL DEFAULT false;  -- whether new messages are encrypted
ALTER TABLE emails ADD COLUMN encrypted boolean;              -- whether the message is; null: it is not
