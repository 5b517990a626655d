"""A response that is written while it is made: at the pace of the client that reads it, and no further once it has left."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

STALLED = 120.0  # seconds after which a client that reads nothing is given up


@implementer(IPushProducer)
class Flow:
    """What is made waits while the connection is full, so that at most one chunk is in memory beyond what the transport holds."""

    def __init__(self, request: Any, clock: Any) -> None:
        self._request, self._clock = request, clock
        self._room: Deferred[None] | None = None
        self._gone = False

    async def run(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        """Whether all of it was written."""
        self._request.notifyFinish().addBoth(lambda _: self.stopProducing())
        self._request.registerProducer(self, True)
        try:
            async for chunk in chunks:
                if self._room is not None:
                    await self._wait(self._room)
                if self._gone:
                    return False
                self._request.write(chunk)
            return not self._gone
        finally:
            await chunks.aclose()
            if not self._gone:
                self._request.unregisterProducer()

    async def _wait(self, room: Deferred[None]) -> None:
        try:
            await room.addTimeout(STALLED, self._clock)
        except TimeoutError:
            self._gone = True
            self._request.loseConnection()

    def pauseProducing(self) -> None:
        if self._room is None and not self._gone:
            self._room = Deferred()

    def resumeProducing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.called:
            room.callback(None)

    def stopProducing(self) -> None:
        self._gone = True
        self.resumeProducing()
