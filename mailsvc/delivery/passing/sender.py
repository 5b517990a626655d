"""The end that accepts: it passes messages on to the processes of this machine that deliver mail of its region."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import IO, Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.delivery.passing import sockets
from mailsvc.delivery.passing.frames import BEHIND, FILE_READ, IN_TIME, LARGEST, Committed, Dropped, Frame, Passed, Section, written
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.queue.processes import Running

_CONNECT = 5  # seconds
_WAITING = 4 << 20  # bytes for one process that may wait to be written: a batch comes at once
_FILES = 16  # whose descriptors may be on their way to one process


class _Connection(Protocol):
    """To one process that delivers."""

    transport: Any

    def __init__(self, sender: Sender, process: int) -> None:
        self._sender, self._process = sender, process
        self.behind = self._paused = False
        self._waiting = 0  # bytes since the transport paused
        self._files: deque[IO[bytes]] = deque()  # open until the other process has read the frame

    def connectionMade(self) -> None:
        if not sockets.same_user(self.transport):
            self.transport.abortConnection()
            return
        self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sockets.BUFFER)
        self.transport.registerProducer(self, True)
        self._sender.opened(self._process, self)

    def dataReceived(self, data: bytes) -> None:
        for _ in range(min(data.count(FILE_READ), len(self._files))):
            self._files.popleft()
        last = max(data.rfind(BEHIND), data.rfind(IN_TIME))
        if last >= 0:
            self.behind = data[last : last + 1] == BEHIND
            self._sender.changed()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._files.clear()
        self._sender.lost(self._process)

    @property
    def full(self) -> bool:
        """It reads more slowly than this process accepts: what does not fit is not passed on."""
        return self._waiting >= _WAITING or len(self._files) >= _FILES

    def write(self, frame: Frame, file: IO[bytes] | None = None) -> None:
        """`file`: whose descriptor is passed on beside the frame."""
        if file is not None:
            self._files.append(file)
            self.transport.sendFileDescriptor(file.fileno())
        data = written(frame)
        if self._paused:
            self._waiting += len(data)
        self.transport.write(data)

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused, self._waiting = False, 0

    def stopProducing(self) -> None:
        self._waiting = _WAITING


@attrs.define(eq=False)
class Sender:
    """`running` returns the live processes, `address` the socket of one, by its process ID. `number` is the one that it registered with.

    `behind` is told whether all of those that deliver are behind.
    """

    log = Logger()

    reactor: Any
    number: Callable[[], int]
    running: Callable[[], Awaitable[list[Running]]]
    address: Callable[[int], str]
    behind: Callable[[bool], None]
    _connections: dict[int, _Connection] = attrs.field(factory=dict, init=False)
    _connecting: set[int] = attrs.field(factory=set, init=False)
    _turns: Any = attrs.field(factory=lambda: cycle(()), init=False)
    _region: str = attrs.field(default="", init=False)
    _passed: dict[UUID, _Connection] = attrs.field(factory=dict, init=False)  # emails that are being committed

    async def look(self) -> None:
        """Connect to the processes that are new, and forget those that have ended."""
        running = await self.running()
        own = next((each for each in running if each.id == self.number()), None)
        if own is None:
            return
        self._region = own.region
        beside = {each.pid for each in running if "delivery" in each.roles and (each.host, each.region) == (own.host, own.region)}
        for gone in self._connections.keys() - beside:
            self._connections[gone].transport.loseConnection()
        for new in beside - self._connections.keys() - self._connecting:
            self._connecting.add(new)
            endpoint = UNIXClientEndpoint(self.reactor, self.address(new), timeout=_CONNECT)
            connectProtocol(endpoint, _Connection(self, new)).addErrback(lambda _, process=new: self.lost(process))

    def pass_on(self, email: NewEmail) -> None:
        """To one of them, in turn, before the commit; `committed` or `dropped` follows.

        It is left to the queue if they are busy, or if the email must not be delivered from memory.
        """
        message = email.message
        if not self._connections or not isinstance(message, bytes | Spooled) or len(_in_memory(message)) > LARGEST:
            return
        if email.scheduled_at is not None or email.topic_id is not None or email.region != self._region:
            return
        if email.encrypted and isinstance(message, Spooled):  # the file is not, and would stay longer on the disk
            return
        connection = next(self._turns)
        if not connection.full:
            self._passed[email.email_id] = connection
            in_file = message.file if isinstance(message, Spooled) else None
            connection.write(Passed(email.email_id, email.envelope, message if isinstance(message, bytes) else _section(message)), in_file)

    def committed(self, email_id: UUID) -> None:
        connection = self._passed.pop(email_id, None)
        if connection is not None:
            connection.write(Committed(email_id))

    def dropped(self, email_id: UUID) -> None:
        """What is not committed is not kept by others, either."""
        connection = self._passed.pop(email_id, None)
        if connection is not None:
            connection.write(Dropped(email_id))

    async def stop(self) -> None:
        for connection in list(self._connections.values()):
            connection.transport.loseConnection()

    # Called by connections

    def opened(self, process: int, connection: _Connection) -> None:
        self._connecting.discard(process)
        self._connections[process] = connection
        self._turns = cycle(list(self._connections.values()))

    def lost(self, process: int) -> None:
        self._connecting.discard(process)
        if self._connections.pop(process, None) is not None:
            self._turns = cycle(list(self._connections.values()))
            self.changed()

    def changed(self) -> None:
        self.behind(bool(self._connections) and all(each.behind for each in self._connections.values()))

    def look_again(self) -> None:
        """Processes came or went."""
        looking = Deferred.fromCoroutine(self.look())
        looking.addErrback(lambda failure: self.log.info("looking for processes failed: {error}", error=failure.getErrorMessage()))


def _in_memory(message: bytes | Spooled) -> bytes:
    return message.prefix if isinstance(message, Spooled) else message


def _section(message: Spooled) -> Section:
    found = os.fstat(message.file.fileno())
    return Section((found.st_dev, found.st_ino), message.start, message.end, message.prefix)
