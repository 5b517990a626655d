"""The database itself: connections and the pool, shared commits, LISTEN/NOTIFY, migrations, and the embedded server."""
