"""Encryption of secrets at rest: the keys, their file and their rotation."""
