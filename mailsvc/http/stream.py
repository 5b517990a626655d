"""A response that is written while it is made: at the pace of the client that reads it, and no further once it has left."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from typing import IO, Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

STALLED = 60.0  # seconds after which a client that reads nothing is disconnected
AT_ONCE = 64 * 1024  # bytes of a body that are handed to the transport in one piece: as much as it buffers before it says stop


def kept(body: bytes) -> IO[bytes]:
    """A temporary file with `body` in it, read from its beginning. Blocking: for a thread."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed by whoever sends it)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[file.write(rest) :]
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def pieces(file: IO[bytes]) -> AsyncGenerator[bytes, None]:
    while piece := file.read(AT_ONCE):
        yield piece


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
        except TimeoutError as late:
            late.__traceback__ = None  # its frames would keep the response until the next garbage collection
            self._gone = True
            self._request.abort()

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
