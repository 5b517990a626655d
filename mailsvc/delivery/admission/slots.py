"""How many connections this process holds, over all lanes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

Wake = Callable[[], None]


class Slots:
    """Connections to share out. Lanes that have not shown themselves well leave a third to the others.

    Whoever finds none is woken once when there may be one, those with transactional mail first. For those who wait, connections
    that lie idle are closed, and destinations that have not shown in `patience` seconds that they work are given up.
    """

    def __init__(self, total: int, clock: Any = None, patience: float = 20.0) -> None:
        self._total = max(1, total)
        self._kept_free = self._total // 3
        self._clock, self._patience = clock, patience
        self.taken = 0
        self._urgent: OrderedDict[Wake, None] = OrderedDict()
        self._patient: OrderedDict[Wake, None] = OrderedDict()
        self._idle: OrderedDict[Wake, None] = OrderedDict()
        self._trials: OrderedDict[Wake, float] = OrderedDict()
        self._timer: Any = None

    @property
    def waiting(self) -> int:
        return len(self._urgent) + len(self._patient)

    @property
    def wanted(self) -> bool:
        """Whether transactional mail waits for a connection, so that bulk mail should let it have one."""
        return bool(self._urgent)

    def take(self, proven: bool, wake: Wake, urgent: bool = True) -> bool:
        """A slot; or False, and `wake` will be called when it is worth asking again."""
        limit = self._total if proven else self._total - self._kept_free
        if self.taken < limit:
            self.taken += 1
            self.forget(wake)
            return True
        (self._patient if urgent else self._urgent).pop(wake, None)
        (self._urgent if urgent else self._patient).setdefault(wake)
        if self._idle:
            close, _ = self._idle.popitem(last=False)
            close()
        self._look()
        return False

    def give(self) -> None:
        """A connection is gone. Whoever waits longest is asked first, each at most once."""
        self.taken -= 1
        for line in (self._urgent, self._patient):
            for _ in range(len(line)):
                if not line:
                    break
                before = self.taken
                wake, _ = line.popitem(last=False)
                wake()
                if self.taken > before:
                    return

    def forget(self, wake: Wake) -> None:
        self._urgent.pop(wake, None)
        self._patient.pop(wake, None)

    def idle(self, close: Wake) -> None:
        """A connection waits for mail; `close` ends it when others need its slot."""
        if self.waiting:
            close()
        else:
            self._idle[close] = None

    def busy(self, close: Wake) -> None:
        self._idle.pop(close, None)

    # Patience

    def trial(self, give_up: Wake) -> None:
        """A connection to a destination that is yet to show that it works; `give_up` ends it."""
        self._trials[give_up] = self._clock.seconds() if self._clock is not None else 0.0
        self._look()

    def tried(self, give_up: Wake) -> None:
        """It works, or it is gone."""
        self._trials.pop(give_up, None)

    def _look(self) -> None:
        if self._clock is None or self._timer is not None or not self.waiting or not self._trials:
            return
        left = next(iter(self._trials.values())) + self._patience - self._clock.seconds()
        self._timer = self._clock.callLater(max(0.0, left), self._lose_patience)

    def _lose_patience(self) -> None:
        self._timer = None
        long_ago = self._clock.seconds() - self._patience
        overdue = [give_up for give_up, since in self._trials.items() if since <= long_ago][: self.waiting]
        for give_up in overdue:
            self._trials.pop(give_up, None)
            give_up()
        self._look()

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent.clear()
        self._patient.clear()
