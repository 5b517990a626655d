"""Access to Postgres: connections and the pool, shared commits, notifications, migrations and the embedded server."""
