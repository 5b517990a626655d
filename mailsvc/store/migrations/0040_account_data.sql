-- Accounts that are being closed or imported. The previous release does not look at it: to it they are suspended.
-- depends: 0039_allow_lists

ALTER TABLE accounts
    ADD COLUMN closed_at timestamptz,                         -- when somebody closed it; null: it is not being closed
    ADD COLUMN closes_at timestamptz,                         -- when all its data is deleted; null: it is not being closed
    ADD COLUMN archive   uuid;                                -- the archive that is being imported; null: none
