"""Benches: how many emails a second, and what each costs. Run by `make bench`, never by the test suite."""
