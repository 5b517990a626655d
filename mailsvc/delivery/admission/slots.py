"""Connection slots: how many connections this process has open, over all lanes, and who waits for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

Wake = Callable[[], None]


class Slots:
    """A third of them is kept for destinations that have proven themselves.

    Whoever waits is woken once when a slot may be free, transactional mail first. While somebody waits, idle connections are closed,
    and connections whose destination has not proven itself within `patience` seconds are given up.
    """

    def __init__(self, total: int, clock: Any = None, patience: float = 20.0) -> None:
        self._total = max(1, total)
        self._kept_free = self._total // 3
        self._clock, self._patience = clock, patience
        self.taken = 0
        self._transactional: OrderedDict[Wake, None] = OrderedDict()
        self._bulk: OrderedDict[Wake, None] = OrderedDict()
        self._idle: OrderedDict[Wake, None] = OrderedDict()
        self._trials: OrderedDict[Wake, float] = OrderedDict()
        self._timer: Any = None
        self._waking = False

    @property
    def waiting(self) -> int:
        return len(self._transactional) + len(self._bulk)

    @property
    def wanted(self) -> bool:
        """Whether transactional mail waits for a slot."""
        return bool(self._transactional)

    def left(self, proven: bool) -> int:
        """Slots that a destination may still take."""
        return (self._total if proven else self._total - self._kept_free) - self.taken

    def take(self) -> None:
        self.taken += 1

    def wait(self, wake: Wake, transactional: bool) -> None:
        """Call `wake` when it is worth asking again."""
        (self._bulk if transactional else self._transactional).pop(wake, None)
        (self._transactional if transactional else self._bulk).setdefault(wake)
        if self._idle:
            close, _ = self._idle.popitem(last=False)
            close()
        self._set_timer()

    def stop_waiting(self, wake: Wake) -> None:
        self._transactional.pop(wake, None)
        self._bulk.pop(wake, None)

    def give_back(self) -> None:
        """A connection is gone. Those that wait are woken in order until one takes the slot, and again for each slot freed meanwhile."""
        self.taken -= 1
        if self._waking:  # called by one that was woken and has failed already; the loop below continues with the next
            return
        self._waking, before = True, self.taken + 1
        try:
            while self.taken < before:  # one that was woken has closed an idle connection
                before = self.taken
                before += self._wake()
        finally:
            self._waking = False

    def _wake(self) -> bool:
        """Whether one has taken a slot."""
        for queue in (self._transactional, self._bulk):
            for _ in range(len(queue)):
                if not queue:
                    break
                before = self.taken
                wake, _ = queue.popitem(last=False)
                wake()
                if self.taken > before:
                    return True
        return False

    def start_idle(self, close: Wake) -> None:
        """A connection has no mail. `close` ends it if others need its slot."""
        if self.waiting:
            close()
        else:
            self._idle[close] = None

    def end_idle(self, close: Wake) -> None:
        self._idle.pop(close, None)

    # Patience

    def start_trial(self, give_up: Wake) -> None:
        """A connection to a destination that has not proven itself. `give_up` ends it."""
        self._trials[give_up] = self._clock.seconds() if self._clock is not None else 0.0
        self._set_timer()

    def end_trial(self, give_up: Wake) -> None:
        """The destination works, or the connection is gone."""
        self._trials.pop(give_up, None)

    def _set_timer(self) -> None:
        if self._clock is None or self._timer is not None or not self.waiting or not self._trials:
            return
        left = next(iter(self._trials.values())) + self._patience - self._clock.seconds()
        self._timer = self._clock.callLater(max(0.0, left), self._end_trials)

    def _end_trials(self) -> None:
        self._timer = None
        long_ago = self._clock.seconds() - self._patience
        overdue = [give_up for give_up, since in self._trials.items() if since <= long_ago][: self.waiting]
        for give_up in overdue:
            self._trials.pop(give_up, None)
            give_up()
        self._set_timer()

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transactional.clear()
        self._bulk.clear()
