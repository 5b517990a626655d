"""The formats: pure functions, one file per standard. No reactor, no database, no clock, no logging lives here."""
