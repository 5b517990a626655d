"""A message body while it arrives: in memory while small, then in an unlinked file; and the message that it becomes."""

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
from mailsvc.runtime.offload import InThread
from mailsvc.smtp.server.replies import Refused
from mailsvc.store.mail.spooled import PIECE, Spooled

log = Logger()

SPOOL_ABOVE = 256 * 1024  # bytes; a larger body goes to disk
COPIES = 2  # of a large mail in memory, if it is worked on as a whole
IN_PIECES = 16 << 20  # bytes of memory at most, if it is not

NO_ROOM = Reply(452, "Too much mail is being received, try again later", "4.3.1")
DISK_FULL = Reply(452, "Insufficient system storage", "4.3.1")
HEADER_TOO_BIG = Reply(552, f"The header is larger than {header.BLOCK_LIMIT // 1024} kB", "5.3.4")


@attrs.frozen
class Arrived:
    """A complete body: its header block, the position after it, and all bytes, in memory or mapped."""

    head: bytes
    start: int  # of the empty line after the header, which is kept
    data: bytes | mmap.mmap
    file: IO[bytes] | None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def large(self) -> bool:
        return self.file is not None

    def with_header(self, header: bytes) -> bytes | Spooled:
        """The message with another header block. A message without a body gets its empty line (5322 §2.1)."""
        if self.start == len(self.data):
            header += b"\r\n"
        if self.file is None:
            return b"".join((header, memoryview(self.data)[self.start :]))  # copied only once
        return Spooled(header, self.file, self.start, len(self.data))

    def rest(self) -> Iterator[bytes]:
        """What follows the header, in pieces."""
        for at in range(self.start, len(self.data), PIECE):
            yield self.data[at : at + PIECE]


Accept = Callable[[Arrived], Coroutine[Any, Any, Reply]]
Memory = Callable[[int], int]  # from the size of a large mail, how much memory is used to accept it


def as_a_whole(size: int) -> int:
    return COPIES * size


def in_pieces(size: int) -> int:
    return min(COPIES * size, IN_PIECES)


@attrs.define(eq=False)
class Spool:
    """The sink of one mail. Its bytes count against the budget from their arrival until the mail is accepted or refused."""

    hold: Hold
    accept: Accept
    in_thread: InThread
    spool_above: int = SPOOL_ABOVE
    working_memory: Memory = as_a_whole
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
        """Move what is in memory to the file, in a thread because disks may be slow."""
        data, self._memory = self._memory, bytearray()
        try:
            self._file = await self.in_thread(partial(_append, self._file, data))
        except OSError as error:
            log.error("writing a message to disk failed: {reason}", reason=error.strerror)
            raise Refused(DISK_FULL) from None

    async def finish(self) -> Reply:
        try:
            if self._file is not None:
                await self._spool()
                if not await self.hold.work(self.working_memory(self._size)):
                    return NO_ROOM
            arrived = self._arrived()
            if isinstance(arrived, Reply):
                return arrived
            return await self.accept(arrived)
        except OSError as error:
            log.error("reading a message from disk failed: {reason}", reason=error.strerror)
            return DISK_FULL
        finally:
            self.discard()

    def _arrived(self) -> Arrived | Reply:
        data: bytes | mmap.mmap
        if self._file is None:
            data = bytes(self._memory)
        else:
            data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if data[:2] == b"\r\n":
            return Arrived(b"", 0, data, self._file)
        limit = header.BLOCK_LIMIT + 4
        end = data.find(b"\r\n\r\n", 0, limit)
        if end < 0 and len(data) >= limit:
            return HEADER_TOO_BIG
        start = end + 2 if end >= 0 else len(data)
        return Arrived(data[:start], start, data, self._file)

    def discard(self) -> None:
        self.hold.close()
        self._memory = bytearray()
        self._file = None


def _append(file: IO[bytes] | None, data: bytearray) -> IO[bytes]:
    if file is None:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed with the last reference to the message)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    return file
