"""The lock that changes take while they count what an account has, so that several at the same time cannot exceed a limit of it."""

LOCK = "SELECT id FROM accounts WHERE id = %s FOR NO KEY UPDATE"  # inserts that refer to the account do not wait for it
