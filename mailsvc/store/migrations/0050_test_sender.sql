-- The shared test sender and the steps to the first email. The previous release does not look at them.
-- depends: 0049_preferences

CREATE TABLE shared_tests (
    account_id uuid NOT NULL,
    id         uuid NOT NULL,
    email_id   uuid,                                          -- in the account of the test sender; null: not accepted yet
    created_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, id)
);

ALTER TABLE users ADD COLUMN verified_at timestamptz;         -- when a link sent to the address was opened; null: never
ALTER TABLE members ADD COLUMN steps_hidden_at timestamptz;   -- when the user hid the steps on the account's home page
