"""The end that delivers: it keeps the messages that other processes pass on, and tells them whether it is behind."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any
from uuid import UUID

import attrs
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IFileDescriptorReceiver
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mailsvc.delivery.passing import sockets
from mailsvc.delivery.passing.frames import (
    BEHIND,
    FILE_READ,
    IN_TIME,
    BadFrame,
    Committed,
    Dropped,
    FileId,
    Frame,
    FrameReader,
    Passed,
    Section,
)
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import Spooled

_MOST = 100  # connections
_FILES = 16  # of one connection that wait for their frames


@implementer(IFileDescriptorReceiver)
class _Connection(Protocol):
    """From one process that accepts."""

    log = Logger()
    transport: Any

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self._reader = receiver, FrameReader()
        self._files: OrderedDict[FileId, IO[bytes]] = OrderedDict()

    def connectionMade(self) -> None:
        if not sockets.same_user(self.transport) or len(self._receiver.connections) >= _MOST:
            self.transport.abortConnection()
            return
        self.transport.bufferSize = sockets.READ
        self._receiver.connections.add(self)
        self.tell(self._receiver.behind)

    def dataReceived(self, data: bytes) -> None:
        if self not in self._receiver.connections:
            return
        try:
            frames = list(self._reader.feed(data))
        except BadFrame as error:
            self.log.warn("a process passed on what cannot be read: {error}", error=str(error))
            self.transport.abortConnection()
            return
        in_files = sum(isinstance(frame, Passed) and isinstance(frame.body, Section) for frame in frames)
        if in_files:
            self.transport.write(FILE_READ * in_files)
        self._receiver.received(frames, self._files)

    def fileDescriptorReceived(self, descriptor: int) -> None:
        """Before the frame that it belongs to."""
        file = os.fdopen(descriptor, "rb", buffering=0)
        if self in self._receiver.connections:
            found = os.fstat(descriptor)
            self._files[found.st_dev, found.st_ino] = file
            if len(self._files) > _FILES:
                self._files.popitem(last=False)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._receiver.connections.discard(self)
        self._files.clear()

    def tell(self, behind: bool) -> None:
        self.transport.write(BEHIND if behind else IN_TIME)


@attrs.define(eq=False)
class Receiver:
    """`keep` is given each message before its email is in the queue, `forget` the ID of one that may not be put there.

    `wake` causes a look at the queue.
    """

    log = Logger()

    keep: Callable[[UUID, bytes | Spooled, StoredEnvelope], None]
    forget: Callable[[UUID], None]
    wake: Callable[[], None]
    behind: bool = attrs.field(default=False, init=False)
    connections: set[_Connection] = attrs.field(factory=set, init=False)
    _port: Any = attrs.field(default=None, init=False)

    def listen(self, reactor: Any, address: str) -> None:
        """Without the socket, others read what they need from Postgres."""
        try:
            self._port = reactor.listenUNIX(address, Factory.forProtocol(lambda: _Connection(self)))
        except CannotListenError as error:
            self.log.warn("no messages are taken from other processes: {error}", error=str(error))

    async def stop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            await port.stopListening()
        for connection in list(self.connections):
            connection.transport.abortConnection()

    def received(self, frames: list[Frame], files: dict[FileId, IO[bytes]]) -> None:
        for frame in frames:
            if isinstance(frame, Passed):
                message = frame.body if isinstance(frame.body, bytes) else _opened(frame.body, files)
                if message is not None:
                    self.keep(frame.email_id, message, frame.envelope)
            elif isinstance(frame, Dropped):
                self.forget(frame.email_id)
        if any(isinstance(frame, Committed) for frame in frames):
            self.wake()

    def set(self, behind: bool) -> None:
        """Tell the processes that accept."""
        self.behind = behind
        for connection in self.connections:
            connection.tell(behind)


def _opened(section: Section, files: dict[FileId, IO[bytes]]) -> Spooled | None:
    """None if the system did not pass the file on: too many are open."""
    file = files.pop(section.file, None)
    return None if file is None else Spooled(section.prefix, file, section.start, section.end)
