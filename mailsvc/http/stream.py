"""Streamed responses: written at the speed of the client, until it leaves."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from typing import IO, Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

STALLED = 60.0  # seconds after which a client that reads nothing is disconnected
CHUNK = 64 * 1024  # bytes that are written to the transport at once: as many as it buffers before it pauses


def in_file(body: bytes) -> IO[bytes]:
    """A temporary file with `body`, positioned at its beginning. Blocking: call it in a thread."""
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


async def chunks_of(file: IO[bytes]) -> AsyncGenerator[bytes, None]:
    while chunk := file.read(CHUNK):
        yield chunk


@implementer(IPushProducer)
class Flow:
    """Waits while the connection is full, so that at most one chunk is in memory besides the buffer of the transport."""

    def __init__(self, request: Any, clock: Any) -> None:
        self._request, self._clock = request, clock
        self._room: Deferred[None] | None = None
        self._gone = False

    async def run(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        """Write all chunks, and return whether that succeeded."""
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
