"""Message formats: pure functions, one module per standard, without reactor, database, clock or logging."""
