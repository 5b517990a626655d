"""Whole ways: a real daemon in a process of its own, real ports on loopback, a real Postgres."""
