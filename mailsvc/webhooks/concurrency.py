"""How many connections each endpoint gets: more while it answers well, fewer when it slows down or fails."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from uuid import UUID

import attrs

KEPT = 10_000  # endpoints that are remembered; the others start again
STEP = 0.5  # connections by which one answer widens or narrows: at most half as many again after each round of answers
SLOWER = 2.0  # an answer that took this many times the usual, and
NOTICEABLE = 0.25  # seconds longer, is slow: more connections only make a queue at the endpoint
LEARN = 0.1  # of the difference to each answer by which the usual time moves, while the endpoint has no more than the least


@attrs.define
class _Width:
    connections: float
    usual: float | None = None  # seconds that an answer takes while the endpoint has nothing to wait for


@attrs.define(eq=False)
class Widths:
    """`least` connections for every endpoint, up to `most` for one that needs and handles them. Times in seconds."""

    least: int
    most: int
    _widths: OrderedDict[UUID, _Width] = attrs.field(factory=OrderedDict, init=False)

    def of(self, webhook_id: UUID) -> int:
        found = self._widths.get(webhook_id)
        return self.least if found is None else int(found.connections)

    def depth(self, webhook_id: UUID, turn: float, most: int) -> int:
        """How many messages one connection is likely to send in `turn` seconds, and at most `most`."""
        found = self._widths.get(webhook_id)
        if found is None or found.usual is None:
            return most
        return max(1, min(most, ceil(turn / max(found.usual, 0.001))))

    def answered(self, webhook_id: UUID, seconds: float, open_now: int) -> None:
        """It took a message within `seconds`, while it had `open_now` connections or a few more."""
        width = self._get(webhook_id)
        usual = seconds if width.usual is None else width.usual
        width.usual = min(seconds, usual) if open_now > self.least else usual + LEARN * (seconds - usual)
        if seconds > usual * SLOWER and seconds > usual + NOTICEABLE:
            width.connections = max(float(self.least), width.connections - STEP)
        elif 2 * open_now > width.connections:  # it uses most of what it has
            width.connections = min(float(max(self.least, self.most)), width.connections + STEP)

    def failed(self, webhook_id: UUID) -> None:
        width = self._get(webhook_id)
        width.connections = max(float(self.least), width.connections / 2)

    def _get(self, webhook_id: UUID) -> _Width:
        width = self._widths.pop(webhook_id, None) or _Width(float(self.least))
        self._widths[webhook_id] = width
        while len(self._widths) > KEPT:
            self._widths.popitem(last=False)
        return width
