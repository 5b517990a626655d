"""Checks how much data is stored, for `mailsvc doctor`: one finding for each kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from mailsvc import units
from mailsvc.monitoring.doctor import Finding
from mailsvc.store.logs.retention import Size


def findings(sizes: Mapping[str, Size], days: Mapping[str, int], now: datetime) -> list[Finding]:
    """`days`: how long each kind is kept."""
    return [_finding(kind, size, days[kind], now) for kind, size in sizes.items()]


def _finding(kind: str, size: Size, days: int, now: datetime) -> Finding:
    check, keeps = f"stored {kind}", f"kept for {days} days"
    if size.oldest is None:
        return Finding(check, "ok", f"{units.size(size.bytes)}, empty; {keeps}.")
    found = f"{units.size(size.bytes)} since {size.oldest:%Y-%m-%d}; {keeps}"
    if size.oldest > now - timedelta(days=days + 2):
        return Finding(check, "ok", f"{found}.")
    remedy = "Older data is deleted once nothing of it is queued (`mailsvc queue list`) and a mailsvc process is running."
    return Finding(check, "warning", f"{found}.", remedy)
