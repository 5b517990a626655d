"""Decides what follows from an endpoint's response: success, a retry, a failure, or disabling the endpoint. Pure.

The retry schedule is the setting `webhooks.schedule`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

import attrs

RETRY_AFTER_MAX = timedelta(days=1)


@attrs.frozen
class Verdict:
    """`hold_until`: the endpoint receives nothing before. `why`: the reason to disable it."""

    outcome: Literal["success", "failed", "retry"]
    next_at: datetime | None = None
    hold_until: datetime | None = None
    why: str | None = None


def judge(status: int, retry_after: str | None, tries: int, now: datetime, schedule: tuple[float, ...]) -> Verdict:
    """Decide after an attempt that ended `now`, with `tries` before it. `status` is 0 if there was no response,
    `schedule` has the pause in seconds after each failure.

    Only 2xx is a success: redirects are not followed, so nobody accepted the message.
    """
    if 200 <= status < 300:
        return Verdict("success")
    if status == 410:  # 9110 §15.5.11: likely permanent
        return Verdict("failed", why="It responded with 410 Gone.")
    hold = _hold(retry_after, now) if status in (408, 425, 429) or status >= 500 else None
    if tries >= len(schedule):
        return Verdict("failed", hold_until=hold)
    next_at = now + timedelta(seconds=schedule[tries])
    return Verdict("retry", max(next_at, hold or next_at), hold)


def _hold(retry_after: str | None, now: datetime) -> datetime | None:
    """Retry-After (9110 §10.2.3): seconds or a date."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        until = now + min(timedelta(seconds=int(text[:9])), RETRY_AFTER_MAX)
    else:
        try:
            found = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        until = min(found if found.tzinfo else found.replace(tzinfo=UTC), now + RETRY_AFTER_MAX)
    return until if until > now else None
