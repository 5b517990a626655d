"""The number of connections for each endpoint: more while it responds quickly, fewer when it slows down or fails."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import ceil
from uuid import UUID

import attrs

REMEMBERED = 10_000  # endpoints; others start with the minimum again
STEP = 0.5  # connections added or removed after a response: at most half as many again in each round
SLOW_FACTOR = 2.0  # a response that takes this many times the usual time, and
SLOW_SECONDS = 0.25  # this much longer, is slow: more connections would only queue at the endpoint
SMOOTHING = 0.1  # weight of each response in the usual time, while the endpoint has the minimum of connections


@attrs.define
class _Endpoint:
    connections: float
    usual: float | None = None  # seconds for a response without load


@attrs.define(eq=False)
class Concurrency:
    """At least `minimum` connections for each endpoint, up to `maximum` for one that needs and handles them. Times in seconds."""

    minimum: int
    maximum: int
    _endpoints: OrderedDict[UUID, _Endpoint] = attrs.field(factory=OrderedDict, init=False)

    def limit(self, webhook_id: UUID) -> int:
        found = self._endpoints.get(webhook_id)
        return self.minimum if found is None else int(found.connections)

    def full(self, open_now: Mapping[UUID, int]) -> list[UUID]:
        """The endpoints that have all the connections they may get; `open_now`: the connections of each."""
        return [webhook_id for webhook_id, count in open_now.items() if count >= self.limit(webhook_id)]

    def depth(self, webhook_id: UUID, turn: float, most: int) -> int:
        """The number of messages that a connection is likely to send in `turn` seconds, at most `most`."""
        found = self._endpoints.get(webhook_id)
        if found is None or found.usual is None:
            return most
        return max(1, min(most, ceil(turn / max(found.usual, 0.001))))

    def answered(self, webhook_id: UUID, seconds: float, open_now: int) -> None:
        """The endpoint accepted a message within `seconds`, with about `open_now` connections open."""
        endpoint = self._get(webhook_id)
        usual = seconds if endpoint.usual is None else endpoint.usual
        endpoint.usual = min(seconds, usual) if open_now > self.minimum else usual + SMOOTHING * (seconds - usual)
        if seconds > usual * SLOW_FACTOR and seconds > usual + SLOW_SECONDS:
            endpoint.connections = max(float(self.minimum), endpoint.connections - STEP)
        elif 2 * open_now > endpoint.connections:  # it uses most of its connections
            endpoint.connections = min(float(max(self.minimum, self.maximum)), endpoint.connections + STEP)

    def failed(self, webhook_id: UUID) -> None:
        endpoint = self._get(webhook_id)
        endpoint.connections = max(float(self.minimum), endpoint.connections / 2)

    def _get(self, webhook_id: UUID) -> _Endpoint:
        endpoint = self._endpoints.pop(webhook_id, None) or _Endpoint(float(self.minimum))
        self._endpoints[webhook_id] = endpoint
        while len(self._endpoints) > REMEMBERED:
            self._endpoints.popitem(last=False)
        return endpoint
