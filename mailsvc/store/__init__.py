"""The memory: the only place with SQL."""
