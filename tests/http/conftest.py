"""Fixtures of the API's tests."""

from __future__ import annotations

from tests.http.world import world  # noqa: F401
