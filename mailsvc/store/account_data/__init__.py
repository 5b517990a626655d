"""All data of an account: which tables have it (tables), its way into an archive and out again (copying, inserting), its end (deletion)."""
