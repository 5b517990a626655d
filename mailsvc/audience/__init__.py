"""Contacts: who may get which mail, double opt-in, and imports. The tables are in store/audience."""
