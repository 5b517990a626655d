"""Sending domains in SQL: their keys, their checks and their history."""
