"""The end that delivers: it receives what other processes pass on, and tells them whether it is behind."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import IO, Any, Protocol
from uuid import UUID

import attrs
from twisted.internet import protocol
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IFileDescriptorReceiver
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mailsvc.delivery.passing import sockets
from mailsvc.delivery.passing.frames import BadFrame, Committed, Dropped, FileId, Frame, FrameReader, Passed, Section
from mailsvc.delivery.passing.replies import BEHIND, FILE_READ, IN_TIME, Refused
from mailsvc.store.mail.spooled import Spooled

_MOST = 100  # connections
_FILES = 16  # of one connection that wait for their frames


class Emails(Protocol):
    """What is told about emails that other processes commit: passing/handed_over. `owner`: the connection that an email came over."""

    def passed(self, emails: Iterable[tuple[Passed, bytes | Spooled | None]], owner: object) -> set[Refused]:
        """They are about to be committed; with their messages. Returns for what there is no room."""

    def committed(self, frames: Iterable[Committed]) -> None:
        """They are in the queue."""

    def dropped(self, email_id: UUID) -> None:
        """It may not be put there."""

    def lost(self, owner: object) -> None:
        """The other process will say nothing more about its emails."""


@implementer(IFileDescriptorReceiver)
class _Connection(protocol.Protocol):
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
        refused = self._receiver.received(frames, self._files, self)
        if refused:
            self.transport.write(b"".join([each.written for each in refused]))

    def fileDescriptorReceived(self, descriptor: int) -> None:
        """Before the frame that it belongs to."""
        file = os.fdopen(descriptor, "rb", buffering=0)
        if self in self._receiver.connections:
            found = os.fstat(descriptor)
            self._files[found.st_dev, found.st_ino] = file
            if len(self._files) > _FILES:
                self._files.popitem(last=False)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._files.clear()
        if self in self._receiver.connections:
            self._receiver.connections.remove(self)
            self._receiver.emails.lost(self)

    def tell(self, behind: bool) -> None:
        self.transport.write(BEHIND if behind else IN_TIME)


@attrs.define(eq=False)
class Receiver:
    log = Logger()

    emails: Emails
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

    def received(self, frames: list[Frame], files: dict[FileId, IO[bytes]], owner: object) -> set[Refused]:
        """Returns for what there is no room. Frames about one email are of different kinds, in the order of the kinds here."""
        passed = [frame for frame in frames if isinstance(frame, Passed)]
        refused = self.emails.passed([(frame, _message(frame, files)) for frame in passed], owner) if passed else set()
        committed = [frame for frame in frames if isinstance(frame, Committed)]
        if committed:
            self.emails.committed(committed)
        for frame in frames:
            if isinstance(frame, Dropped):
                self.emails.dropped(frame.email_id)
        return refused

    def set(self, behind: bool) -> None:
        """Tell the processes that accept."""
        self.behind = behind
        for connection in self.connections:
            connection.tell(behind)


def _message(frame: Passed, files: dict[FileId, IO[bytes]]) -> bytes | Spooled | None:
    """None if it was not passed on, or if the system has left out its file: too many are open."""
    body = frame.body
    if not isinstance(body, Section):
        return body
    file = files.pop(body.file, None)
    return None if file is None else Spooled(body.prefix, file, body.start, body.end)
