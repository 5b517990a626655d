-- The ramp of new accounts, trusted accounts, and automatic holds of an account's mail.
-- depends: 0028_contact_hash

ALTER TABLE accounts
    ADD COLUMN ramp         bigint,                           -- recipients per day while the account is new; null: no such limit
    ADD COLUMN ramp_at      timestamptz,                      -- when it was last raised, at first when the account was created
    ADD COLUMN trusted_at   timestamptz,                      -- since when the operator trusts it: no ramp, no automatic hold; null: not
    ADD COLUMN counted_from timestamptz;                      -- when its mail was last released: earlier bounces no longer count; null: never

ALTER TABLE account_pauses
    ADD COLUMN automatic    boolean NOT NULL DEFAULT false,   -- by rates, not by the operator
    ADD COLUMN held_at      timestamptz,                      -- when, if automatic
    ADD COLUMN notified     boolean NOT NULL DEFAULT true;    -- whether admins and the operator were notified of an automatic one

-- Which accounts had permanent bounces or complaints lately, without reading everybody's counts.
CREATE INDEX rollups_problems ON rollups (hour, account_id) WHERE type IN ('email.bounced.permanent', 'email.complained');
