"""Disconnects all clients after each test."""

from __future__ import annotations

from tests.sandbox.conftest import _disconnect

__all__ = ["_disconnect"]
