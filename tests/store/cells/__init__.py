"""Tests of mailsvc.store.cells."""
