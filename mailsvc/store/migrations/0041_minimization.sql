-- What an account does not want to be stored. The previous release does not look at it.
-- depends: 0040_account_data

ALTER TABLE accounts ADD COLUMN minimize text[] NOT NULL DEFAULT '{}';  -- of bodies, requests, addresses and tracking (store/people/minimization.py)
