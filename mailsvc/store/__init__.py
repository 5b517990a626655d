"""The memory: everything that is kept, and the only place with SQL."""
