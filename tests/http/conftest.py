"""Fixtures of the API's tests."""

from __future__ import annotations

from tests.http.api_rig import rig  # noqa: F401
