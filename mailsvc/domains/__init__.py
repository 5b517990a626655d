"""Sending domains: what their owners publish in DNS, and the keys that this takes."""
