"""Fixtures of the tests here."""

from __future__ import annotations

from tests.http.api_rig import rig as rig
