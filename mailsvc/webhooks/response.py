"""What an endpoint's answer comes to: taken, to be tried again and when, given up, or the end of the endpoint. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

import attrs

LONGEST_HOLD = timedelta(days=1)  # of Retry-After, whatever it says


@attrs.frozen
class Verdict:
    """`hold_until`: nothing else is sent to the endpoint before. `why`: it is to be disabled, for this reason."""

    outcome: Literal["success", "failed", "retry"]
    next_at: datetime | None = None
    hold_until: datetime | None = None
    why: str | None = None


def judge(status: int, retry_after: str | None, tries: int, now: datetime, schedule: tuple[float, ...]) -> Verdict:
    """Of the attempt after `tries` others, that ended `now`. `status` is 0 when there was no answer.

    2xx alone is success: a redirect is not followed, so nobody took the message.
    """
    if 200 <= status < 300:
        return Verdict("success")
    if status == 410:  # 9110 §15.5.11: gone, and likely for good
        return Verdict("failed", why="It answered 410 Gone.")
    hold = _hold(retry_after, now) if status in (408, 425, 429) or status >= 500 else None
    if tries >= len(schedule):
        return Verdict("failed", hold_until=hold)
    next_at = now + timedelta(seconds=schedule[tries])
    return Verdict("retry", max(next_at, hold or next_at), hold)


def _hold(retry_after: str | None, now: datetime) -> datetime | None:
    """9110 §10.2.3: seconds or a date."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        until = now + min(timedelta(seconds=int(text[:9])), LONGEST_HOLD)
    else:
        try:
            found = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
        until = min(found if found.tzinfo else found.replace(tzinfo=UTC), now + LONGEST_HOLD)
    return until if until > now else None
