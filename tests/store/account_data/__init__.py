"""All data of an account: its archive, and deleting it."""
