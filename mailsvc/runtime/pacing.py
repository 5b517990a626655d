"""Accepting mail gives way to delivering it while the processor has no time for both.

Without this, a burst is accepted as fast as it comes, and then waits: each email of it is delivered seconds after it was acknowledged.
The rate stays the same, because accepting waits only while there is mail to deliver at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred

ROUND = 0.1  # seconds after which everyone who waits may go on, together, so that they share a commit
TOGETHER, ROUNDS = 20, 5  # a submission waits one round, and one more for each 20 emails of it; at most 5
FEW = 100  # emails in memory that are not behind, however busy the processor is
LATE = 0.005  # seconds that the reactor is late when it is busy
CALM = 10  # measurements in a row in which the reactor was not late, after which the processor has time again
TICK, IDLE_TICK = 0.02, 0.1  # seconds between two measurements, with more and with fewer emails than FEW


@attrs.define(eq=False)
class Pace:
    """Await `wait()` before accepting something. `clock` has callLater."""

    clock: Any
    behind: bool = attrs.field(default=False, init=False)
    _waiting: list[tuple[int, Deferred[None]]] = attrs.field(factory=list, init=False)  # with the rounds that are left
    _timer: Any = attrs.field(default=None, init=False)

    def wait(self, emails: int) -> Deferred[None] | None:
        """Fires when delivery is no longer behind, or after some rounds; None if there is nothing to wait for."""
        if not self.behind:
            return None
        turn: Deferred[None] = Deferred()
        self._waiting.append((min(1 + emails // TOGETHER, ROUNDS), turn))
        self._begin_round()
        return turn

    def set(self, behind: bool) -> None:
        self.behind = behind
        if not behind:
            self._release(ROUNDS)

    def _begin_round(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = self.clock.callLater(ROUND, self._end_round)

    def _end_round(self) -> None:
        self._timer = None
        self._release(1)
        self._begin_round()

    def _release(self, rounds: int) -> None:
        """Of those who wait, all who have no more rounds to wait than these."""
        waiting = [(left - rounds, turn) for left, turn in self._waiting]
        self._waiting = [(left, turn) for left, turn in waiting if left > 0]
        for left, turn in waiting:
            if left <= 0 and not turn.called:  # otherwise its caller was cancelled
                turn.callback(None)


@attrs.define(eq=False)
class Load:
    """Measures whether delivery is behind for lack of processor time: there is much to deliver, and the reactor is late.

    `emails` returns how many emails are in memory to be delivered. `changed` is called with each new result.
    """

    clock: Any
    now: Callable[[], float]
    emails: Callable[[], int]
    changed: Callable[[bool], None]
    behind: bool = attrs.field(default=False, init=False)
    _in_time: int = attrs.field(default=0, init=False)  # measurements in a row
    _call: Any = attrs.field(default=None, init=False)

    def start(self) -> None:
        pause = TICK if self.emails() > FEW else IDLE_TICK
        self._call = self.clock.callLater(pause, self._measure, self.now() + pause)

    async def stop(self) -> None:
        self._call.cancel()
        self._set(False)

    def _measure(self, due: float) -> None:
        self._in_time = 0 if self.now() - due > LATE else self._in_time + 1
        self._set(self.emails() > FEW and (self._in_time == 0 or (self.behind and self._in_time < CALM)))
        self.start()

    def _set(self, behind: bool) -> None:
        if behind != self.behind:
            self.behind = behind
            self.changed(behind)
