"""When the next attempt may start, and how long a failing destination is held. Pure.

`attempts` counts those that were made, including the one that just failed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import attrs

from mailsvc.delivery.limits import DeliveryLimits

Random = Callable[[], float]  # uniform in [0, 1)
_BEFORE_EXPIRY = timedelta(seconds=30)  # the last attempt starts this long before the recipient expires, so that it can finish


@attrs.frozen
class Schedule:
    """The delays between attempts, from the settings."""

    after: tuple[float, ...] = (60, 300, 900, 1800, 3600, 7200)
    every: float = 14400
    jitter: float = 0.2
    greylist: float = 300
    uncertain: float = 300

    @classmethod
    def of(cls, limits: DeliveryLimits) -> Schedule:
        return cls(limits.retry_after, limits.retry_every, limits.retry_jitter, limits.greylist_seconds, limits.uncertain_seconds)

    def delay(self, attempts: int, random: Random, least: float = 0.0) -> float:
        """Seconds until the next attempt, with jitter so that mails that failed together are not retried together."""
        base = self.after[attempts - 1] if 1 <= attempts <= len(self.after) else self.every
        if attempts < 1:
            base = self.after[0] if self.after else self.every
        return max(1.0, least, base * (1 + self.jitter * (2 * random() - 1)), least * (1 + self.jitter * random()))

    def next_attempt(self, attempts: int, now: datetime, random: Random, *, greylisted: bool = False) -> datetime:
        """A time in the future; for a greylisted recipient, not before greylisting usually ends."""
        return now + timedelta(seconds=self.delay(attempts, random, self.greylist if greylisted else 0.0))

    def after_silence(self, attempts: int, now: datetime, random: Random) -> datetime:
        """After a message without a reply: the server gets time to finish what it may be doing (1047)."""
        return now + timedelta(seconds=self.delay(attempts, random, self.uncertain))


def before_expiry(wanted: datetime, now: datetime, expires_at: datetime) -> datetime | None:
    """`wanted`, or a last attempt shortly before the expiry if there is time for one, or None."""
    if wanted < expires_at:
        return wanted
    last = expires_at - _BEFORE_EXPIRY
    # At least half of the planned delay must have passed.
    return last if last - now >= max((wanted - now) / 2, timedelta(seconds=60)) else None


def hold_seconds(failures: int, first: float, longest: float, random: Random, jitter: float = 0.2) -> float:
    """How long a destination is held after so many failures in a row: varied, and never longer than `longest`."""
    return min(longest / (1 + jitter), first * 2.0 ** min(failures - 1, 30)) * (1 + jitter * (2 * random() - 1))
