-- Finds the suppressions with one origin. Adding and removing suppressions waits while it is built: about a second for each million.
-- depends: 0056_domain_notices

CREATE INDEX suppressions_origin ON suppressions (account_id, origin, id);
