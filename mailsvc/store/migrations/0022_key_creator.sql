-- Who created an API key, so that an admin who removes a member can revoke the keys that the member still has.
-- depends: 0021_address

ALTER TABLE api_keys ADD COLUMN created_by uuid REFERENCES users ON DELETE SET NULL;  -- null: the operator, or before this column existed
