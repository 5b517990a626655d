-- Finds the emails that bounced, failed, were suppressed or were reported as spam. Deliveries, which are most events, are not in it.
-- Writing events waits while it is built: about a second for each million of stored events.
-- depends: 0045_uploads

CREATE INDEX events_problems ON events (account_id, type, email_id)
    WHERE type IN ('email.bounced', 'email.complained', 'email.failed', 'email.suppressed');
