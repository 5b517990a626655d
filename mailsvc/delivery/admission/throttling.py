"""How a provider's rate follows its replies: lower after each throttling reply, twice as high after each quiet hour. Pure.

A slowdown is one row for all processes of a region (store/queue/holds). What its rate is at a given time follows from the row alone, so
that nothing is written while the rate rises. Which replies throttle: shaping.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from mailsvc.store.queue.holds import Slowdown

QUIET = timedelta(hours=1)  # without a throttling reply, after the end of a slowdown: the rate doubles
RECOVERY = 10 * QUIET  # then the provider's own limits apply again
_LEAST = 1.0  # emails a minute
_ONE_EVENT = 0.1  # of a slowdown's time: replies that come this soon after its beginning have the same cause


@attrs.frozen
class Throttle:
    """What a slowdown allows a region now. `until`: the end of the slowdown; after it, the rate recovers."""

    per_minute: float
    connections: int
    until: datetime
    recovering: bool


def throttle(slowdown: Slowdown | None, now: datetime) -> Throttle | None:
    """None: there is none, or it has recovered."""
    if slowdown is None or now >= slowdown.until + RECOVERY:
        return None
    if now < slowdown.until:
        return Throttle(slowdown.per_minute, 1, slowdown.until, recovering=False)
    factor = 2 ** (1 + (now - slowdown.until) // QUIET)
    return Throttle(slowdown.per_minute * factor, factor, slowdown.until, recovering=True)


def slower(known: Slowdown | None, name: str, per_minute: float, because: str, seconds: float, now: datetime) -> Slowdown | None:
    """The slowdown of `name` after a throttling reply whose rule allows `per_minute` for `seconds`. None: the known one covers it.

    A provider that throttles again gets the rule's rate, or half of the present one if that is lower.
    """
    until = now + timedelta(seconds=seconds)
    present = throttle(known, now)
    if known is not None and present is not None:
        if known.per_minute <= per_minute and known.until >= until - timedelta(seconds=seconds * _ONE_EVENT):
            return None
        per_minute = min(per_minute, max(_LEAST, present.per_minute / 2))
        until = max(known.until, until)
    return Slowdown(per_minute, f"{name} gets {per_minute:.3g} emails a minute because {because}.", until)
