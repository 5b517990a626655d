"""How long the client waits for what (RFC 5321 §4.5.3.2), and one timer a connection that keeps it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@attrs.frozen
class Timeouts:
    """Seconds. The defaults are the RFC's minima, where it names one."""

    greeting: float = 300  # 5321 §4.5.3.2.1
    ehlo: float = 300
    tls: float = 60  # STARTTLS and its handshake
    login: float = 60
    setup: float = 900  # all of the above together
    mail: float = 300  # 5321 §4.5.3.2.2; RSET too
    rcpt: float = 300  # 5321 §4.5.3.2.3
    data: float = 120  # 5321 §4.5.3.2.4
    block: float = 180  # 5321 §4.5.3.2.5: one slice of the message
    dot: float = 600  # 5321 §4.5.3.2.6; the reply to BDAT too: a shorter wait makes duplicates
    quit: float = 5
    rate: float = 500  # octets a second that a message makes at least, after its first `block` seconds
    message: float = 3600  # from MAIL to the end of the message, the wait for its reply not counted


class Deadline:
    """One moment after which `expire(what)` is called, moved many times a second at the cost of an assignment.

    The timer looks at the moment when it fires; it never looks ahead further than `HORIZON`, so that a moment set
    later than that needs no timer of its own.
    """

    HORIZON = 30.0

    def __init__(self, clock: IReactorTime, expire: Callable[[str], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._due: float | None = None
        self._what = ""
        self._timer: IDelayedCall | None = None
        self._fires = 0.0

    def set(self, due: float, what: str) -> None:
        """Expire at `due`, in the clock's seconds, unless set anew or cleared before."""
        self._due = due
        self._what = what
        if self._timer is None or due < self._fires:
            self._look()

    def clear(self) -> None:
        """Nothing is waited for. A timer that is under way finds that out by itself, once."""
        self._due = None

    def stop(self) -> None:
        """Leave no timer behind."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due is None:
            return
        wait = min(max(self._due - self._clock.seconds(), 0.0), self.HORIZON)
        self._fires = self._clock.seconds() + wait
        self._timer = self._clock.callLater(wait, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._due is not None and self._clock.seconds() >= self._due:
            self._due = None
            self._expire(self._what)
        else:
            self._look()
