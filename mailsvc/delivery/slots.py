"""How many connections this process holds, over all lanes, and how many octets of messages: bounds that all lanes share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

Wake = Callable[[], None]
Envelope = Mapping[str, Any] | None


class Slots:
    """Connections to share out. Lanes that have not shown themselves well leave a third to the others.

    Whoever finds none is woken once when there may be one; connections that lie idle are closed for those who wait.
    """

    def __init__(self, total: int) -> None:
        self._total = max(1, total)
        self._kept_free = self._total // 3
        self.taken = 0
        self._waiting: OrderedDict[Wake, None] = OrderedDict()
        self._idle: OrderedDict[Wake, None] = OrderedDict()

    def take(self, proven: bool, wake: Wake) -> bool:
        """A slot; or False, and `wake` will be called when it is worth asking again."""
        limit = self._total if proven else self._total - self._kept_free
        if self.taken < limit:
            self.taken += 1
            self._waiting.pop(wake, None)
            return True
        self._waiting.setdefault(wake)
        if self._idle:
            close, _ = self._idle.popitem(last=False)
            close()
        return False

    def give(self) -> None:
        """A connection is gone. Whoever waits longest is asked first, each at most once."""
        self.taken -= 1
        for _ in range(len(self._waiting)):
            before = self.taken
            wake, _ = self._waiting.popitem(last=False)
            wake()
            if self.taken > before:
                return

    def forget(self, wake: Wake) -> None:
        self._waiting.pop(wake, None)

    def idle(self, close: Wake) -> None:
        """A connection waits for mail; `close` ends it when others need its slot."""
        if self._waiting:
            close()
        else:
            self._idle[close] = None

    def busy(self, close: Wake) -> None:
        self._idle.pop(close, None)


class Freight:
    """Octets of messages in memory. Born-leased mail is only kept while there is room; what is loaded counts too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.octets = 0

    def room(self, octets: int) -> bool:
        return self.octets + octets <= self._limit

    def load(self, octets: int) -> None:
        self.octets += octets

    def unload(self, octets: int) -> None:
        self.octets -= octets


class Recent:
    """Messages that were accepted here and went to the queue. Who claims them soon after has no need to read them back.

    The oldest make room for new ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._octets = 0
        self._kept: OrderedDict[UUID, tuple[bytes, Envelope]] = OrderedDict()

    def keep(self, email_id: UUID, body: object, envelope: Envelope) -> None:
        if isinstance(body, bytes) and len(body) <= self._limit // 8:
            self._kept[email_id] = body, envelope
            self._octets += len(body)
            while self._octets > self._limit:
                self._octets -= len(self._kept.popitem(last=False)[1][0])

    def pop(self, email_id: UUID) -> tuple[bytes, Envelope] | None:
        """The message, and what was kept of its envelope."""
        kept = self._kept.pop(email_id, None)
        if kept is not None:
            self._octets -= len(kept[0])
        return kept
