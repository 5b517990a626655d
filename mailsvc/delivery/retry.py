"""When the next attempt may start, as pure functions of what happened; and how long a destination rests.

`attempts` counts those already made, the one that just failed included.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import attrs

from mailsvc.delivery.limits import DeliveryLimits

Random = Callable[[], float]  # uniform in [0, 1)
_LAST_CALL = timedelta(seconds=30)  # before the expiry: the last attempt, so that it is over when the time is


@attrs.frozen
class Schedule:
    """The delays between attempts, from the settings."""

    after: tuple[float, ...] = (60, 300, 900, 1800, 3600, 7200)
    every: float = 14400
    jitter: float = 0.2
    greylist: float = 300
    uncertain: float = 300

    @classmethod
    def of(cls, terms: DeliveryLimits) -> Schedule:
        return cls(terms.retry_after, terms.retry_every, terms.retry_jitter, terms.greylist_seconds, terms.uncertain_seconds)

    def delay(self, attempts: int, random: Random, least: float = 0.0) -> float:
        """Seconds until the next attempt, spread so that what failed together does not come back together."""
        base = self.after[attempts - 1] if 1 <= attempts <= len(self.after) else self.every
        if attempts < 1:
            base = self.after[0] if self.after else self.every
        return max(1.0, least, base * (1 + self.jitter * (2 * random() - 1)), least * (1 + self.jitter * random()))

    def next_attempt(self, attempts: int, now: datetime, random: Random, *, greylisted: bool = False) -> datetime:
        """A time in the future. After a refusal that waiting cures, not before greylisting is usually over."""
        return now + timedelta(seconds=self.delay(attempts, random, self.greylist if greylisted else 0.0))

    def after_silence(self, attempts: int, now: datetime, random: Random) -> datetime:
        """After a message without a reply (1047): the peer gets time to finish what it may be doing."""
        return now + timedelta(seconds=self.delay(attempts, random, self.uncertain))


def before_expiry(wanted: datetime, now: datetime, expires_at: datetime) -> datetime | None:
    """`wanted`, or a last attempt shortly before the expiry when there is time left for one; None when there is not."""
    if wanted < expires_at:
        return wanted
    last = expires_at - _LAST_CALL
    # Half of the planned delay must have passed, so that a last call is no impatient one.
    return last if last - now >= max((wanted - now) / 2, timedelta(seconds=60)) else None


def rest(failures: int, first: float, longest: float, random: Random, jitter: float = 0.2) -> float:
    """Seconds that a destination rests after so many failures in a row."""
    return min(longest, first * 2.0 ** min(failures - 1, 30)) * (1 + jitter * (2 * random() - 1))
