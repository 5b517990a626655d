"""Benchmarks: emails per second, and the cost of each. Run by `make bench`, not by the test suite."""
