"""No conversation outlives its test."""

from __future__ import annotations

from tests.sandbox.conftest import _hang_up

__all__ = ["_hang_up"]
