"""A body on its way in: in memory while it is small, then in a file without a name; and the message that it becomes."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import IO, Any

import attrs
from twisted.logger import Logger

from mailsvc.mail import header
from mailsvc.mail.reply import Reply
from mailsvc.runtime.budget import Hold
from mailsvc.smtp.server.replies import Refused

log = Logger()

SPOOL_ABOVE = 256 * 1024  # octets from which on a body waits on disk
PIECE = 256 * 1024
COPIES = 2  # of a large mail that are in memory while it is read and stored

NO_ROOM = Reply(452, "Too much mail is being received just now, try again later", "4.3.1")
DISK_FULL = Reply(452, "Insufficient system storage", "4.3.1")
HEADER_TOO_BIG = Reply(552, f"The header is larger than {header.BLOCK_LIMIT // 1024} kB", "5.3.4")


@attrs.define(eq=False)
class Spooled:
    """A message of lines made here, `prefix`, and of what came in from `start` on. Its file goes when nobody holds it any more."""

    prefix: bytes
    file: IO[bytes]
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.prefix) + self.end - self.start

    def __iter__(self) -> Iterator[bytes]:
        yield self.prefix
        with mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) as octets:
            for at in range(self.start, self.end, PIECE):
                yield octets[at : min(at + PIECE, self.end)]


@attrs.frozen
class Arrived:
    """A complete body: its header block, where what follows that begins, and its octets, in memory or mapped."""

    head: bytes
    start: int  # of the empty line that ends the header, which belongs to what is kept
    octets: bytes | mmap.mmap
    file: IO[bytes] | None

    def __len__(self) -> int:
        return len(self.octets)

    @property
    def large(self) -> bool:
        return self.file is not None

    def behind(self, prefix: bytes) -> bytes | Spooled:
        """`prefix` in the place of the header block."""
        if self.file is None:
            return b"".join((prefix, memoryview(self.octets)[self.start :]))  # copied once
        return Spooled(prefix, self.file, self.start, len(self.octets))

    def rest(self) -> Iterator[bytes]:
        """What follows the header, in pieces."""
        for at in range(self.start, len(self.octets), PIECE):
            yield self.octets[at : at + PIECE]


Accept = Callable[[Arrived], Coroutine[Any, Any, Reply]]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a function off the reactor


@attrs.define(eq=False)
class Spool:
    """The sink of one mail. Its octets count in the budget from when they come until it is settled."""

    hold: Hold
    accept: Accept
    in_thread: InThread
    spool_above: int = SPOOL_ABOVE
    _size: int = 0
    _memory: bytearray = attrs.field(factory=bytearray)
    _file: IO[bytes] | None = None

    def write(self, piece: bytes) -> Awaitable[None] | None:
        self._size += len(piece)
        if not self.hold.arrived(self._size, self.spool_above):
            raise Refused(NO_ROOM)
        self._memory += piece
        return self._spool() if len(self._memory) > self.spool_above else None

    async def _spool(self) -> None:
        """What is in memory goes to the file, in a thread: a disk may take its time."""
        octets, self._memory = self._memory, bytearray()
        try:
            self._file = await self.in_thread(partial(_append, self._file, octets))
        except OSError as error:
            log.error("a mail could not be kept on disk: {reason}", reason=error.strerror)
            raise Refused(DISK_FULL) from None

    async def finish(self) -> Reply:
        try:
            if self._file is not None:
                await self._spool()
                if not await self.hold.work(COPIES * self._size):
                    return NO_ROOM
            arrived = self._arrived()
            if isinstance(arrived, Reply):
                return arrived
            return await self.accept(arrived)
        except OSError as error:
            log.error("a mail could not be kept on disk: {reason}", reason=error.strerror)
            return DISK_FULL
        finally:
            self.drop()

    def _arrived(self) -> Arrived | Reply:
        octets: bytes | mmap.mmap
        if self._file is None:
            octets = bytes(self._memory)
        else:
            octets = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if octets[:2] == b"\r\n":
            return Arrived(b"", 0, octets, self._file)
        most = header.BLOCK_LIMIT + 4
        end = octets.find(b"\r\n\r\n", 0, most)
        if end < 0 and len(octets) >= most:
            return HEADER_TOO_BIG
        start = end + 2 if end >= 0 else len(octets)
        return Arrived(octets[:start], start, octets, self._file)

    def drop(self) -> None:
        self.hold.close()
        self._memory = bytearray()
        self._file = None


def _append(file: IO[bytes] | None, octets: bytearray) -> IO[bytes]:
    if file is None:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (whoever holds the message last closes it)
    rest = memoryview(octets)
    while rest:
        rest = rest[file.write(rest) :]
    return file
