-- Single sign-on: an OpenID Connect provider of an account's own. The previous release does not look at it.
-- depends: 0042_body_keys

CREATE TABLE single_sign_on (
    account_id    uuid PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    issuer        text NOT NULL,
    client        text NOT NULL,                              -- the client ID at the provider
    secret        bytea NOT NULL,                             -- the client secret, encrypted
    required      boolean NOT NULL DEFAULT false,             -- whether members with addresses at its domains must sign in with it
    new_members   boolean NOT NULL,                           -- whether people who are no members become one at their first sign-in
    vouches       boolean NOT NULL,                           -- whether its addresses count as verified if it does not say so
    changed_at    timestamptz NOT NULL                        -- when the provider was last changed
);

-- A domain belongs to one account: whoever enters an address at it is sent to that account's provider.
CREATE TABLE single_sign_on_domains (
    account_id    uuid NOT NULL REFERENCES single_sign_on ON DELETE CASCADE,
    domain        text NOT NULL,                              -- A-labels
    verified      text NOT NULL,                              -- the account's sending domain that proved it: the same, or a parent
    PRIMARY KEY (account_id, domain)
);
CREATE UNIQUE INDEX single_sign_on_domain ON single_sign_on_domains (domain);

-- The domains that count: not those whose sending domain another account has verified since.
CREATE VIEW single_sign_on_claims AS
SELECT c.account_id, c.domain FROM single_sign_on_domains c
WHERE NOT EXISTS (
    SELECT FROM domains d
    WHERE d.name = c.verified AND d.account_id <> c.account_id AND (d.status = 'verified' OR d.trusted_at IS NOT NULL)
);

-- Who a member is at the provider. An address is no part of it: it may go from one person to another.
CREATE TABLE single_sign_on_members (
    account_id    uuid NOT NULL,
    issuer        text NOT NULL,
    subject       text NOT NULL,
    user_id       uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, issuer, subject),
    UNIQUE (account_id, issuer, user_id),
    FOREIGN KEY (account_id, user_id) REFERENCES members ON DELETE CASCADE
);
CREATE INDEX single_sign_on_members_user ON single_sign_on_members (account_id, user_id);

ALTER TABLE sessions ADD COLUMN single_sign_on uuid;          -- the account whose provider was used to sign in; null: another way
