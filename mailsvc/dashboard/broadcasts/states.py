"""How the state of a broadcast is shown, and where its pages are. Pure."""

from __future__ import annotations

from mailsvc.dashboard.safety import HOME
from mailsvc.store.broadcasts.values import Broadcast, Status

BROADCASTS = f"{HOME}/broadcasts"
LABELS: dict[Status, tuple[str, str]] = {
    "draft": ("Draft", "quiet"),
    "scheduled": ("Scheduled", "info"),
    "queued": ("Sending", "info"),
    "sent": ("Sent", "good"),
    "canceled": ("Canceled", "quiet"),
    "failed": ("Failed", "bad"),
}


def label(broadcast: Broadcast) -> tuple[str, str]:
    """The label and its tone."""
    return ("Paused", "warn") if broadcast.paused_at is not None else LABELS[broadcast.status]
