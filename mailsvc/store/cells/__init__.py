"""Cells on Citus: creating them, their views, moving them, and holding them in place while they are used."""
