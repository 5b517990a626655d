"""The client's timeouts (RFC 5321 §4.5.3.2), and the one timer of a connection that enforces them."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@attrs.frozen
class Timeouts:
    """Seconds. The defaults are the RFC's minimums where it has any, except for `reused`."""

    greeting: float = 300  # 5321 §4.5.3.2.1
    ehlo: float = 300
    tls: float = 60  # STARTTLS and its handshake
    login: float = 60
    setup: float = 900  # all of the above together
    mail: float = 300  # 5321 §4.5.3.2.2; also RSET
    reused: float = 60  # the first reply to a further message: shorter, because the message can then go over a new connection
    rcpt: float = 300  # 5321 §4.5.3.2.3
    data: float = 120  # 5321 §4.5.3.2.4
    block: float = 180  # 5321 §4.5.3.2.5: one slice of the message
    dot: float = 600  # 5321 §4.5.3.2.6; also the reply to BDAT. A shorter timeout causes duplicates
    quit: float = 5
    rate: float = 500  # minimum bytes per second of a message, after its first `block` seconds
    message: float = 3600  # from MAIL to the end of the message, without the wait for its reply


class Deadline:
    """Calls `expire(what)` at a moment that can be changed many times a second at the cost of an assignment.

    The timer checks the moment when it fires. It runs for at most `HORIZON` seconds, so that a later moment does not need a new one.
    """

    HORIZON = 30.0

    def __init__(self, clock: IReactorTime, expire: Callable[[str], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._due: float | None = None
        self._what = ""
        self._timer: IDelayedCall | None = None
        self._fires_at = 0.0

    def set(self, due: float, what: str) -> None:
        """Expire at `due`, in the clock's seconds, unless it is changed or cleared before."""
        self._due = due
        self._what = what
        if self._timer is None or due < self._fires_at:
            self._start_timer()

    def clear(self) -> None:
        """Do not expire. A running timer fires once more without effect."""
        self._due = None

    def stop(self) -> None:
        """Cancel the timer."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due is None:
            return
        wait = min(max(self._due - self._clock.seconds(), 0.0), self.HORIZON)
        self._fires_at = self._clock.seconds() + wait
        self._timer = self._clock.callLater(wait, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._due is not None and self._clock.seconds() >= self._due:
            self._due = None
            self._expire(self._what)
        else:
            self._start_timer()
