"""Contacts, their properties, segments and topics, what they consented to, and imports. Rules: docs/decisions/audience.md."""
