"""The database: the only package with SQL."""
