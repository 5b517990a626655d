"""What is kept and how large it is, for the doctor: one finding for each kind of thing, and the days that are held back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from mailsvc.monitoring.doctor import Finding
from mailsvc.store.logs.retention import Size


def findings(sizes: Mapping[str, Size], days: Mapping[str, int], now: datetime) -> list[Finding]:
    """`days`: how many of each kind are to be kept."""
    return [_finding(kind, size, days[kind], now) for kind, size in sizes.items()]


def _finding(kind: str, size: Size, days: int, now: datetime) -> Finding:
    check, keeps = f"kept {kind}", f"{days} days are kept"
    if size.oldest is None:
        return Finding(check, "good", f"{octets(size.bytes)}, nothing in it; {keeps}.")
    told = f"{octets(size.bytes)} since {size.oldest:%Y-%m-%d}; {keeps}"
    if size.oldest > now - timedelta(days=days + 2):
        return Finding(check, "good", f"{told}.")
    remedy = "Something of that day still waits (`mailsvc queue list`), or no process of mailsvc has run since."
    return Finding(check, "doubtful", f"{told}.", remedy)


def octets(count: int) -> str:
    """For people: three digits and a unit."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
