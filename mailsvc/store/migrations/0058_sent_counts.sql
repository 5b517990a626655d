-- Finds how much an account has sent, in its month, without its other counts. Events are numbered later while it is built: less than a
-- second for each million hourly counts.
-- depends: 0057_suppression_origin

CREATE INDEX rollups_sent ON rollups (account_id, hour) WHERE type = 'email.sent';
