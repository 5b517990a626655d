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
from mailsvc.delivery.passing.frames import LARGEST, BadFrame, Committed, Dropped, Frame, LeasedRecipients, Passed, Section, written
from mailsvc.delivery.passing.replies import BEHIND, FILE_READ, Refused, ReplyReader
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import NewEmail, NewRecipient
from mailsvc.store.queue.processes import Running

_CONNECT = 5  # seconds
_WAITING = 4 << 20  # bytes for one process that may wait to be written: a batch comes at once
_FILES = 16  # whose descriptors may be on their way to one process
_REFUSED = 1.0  # seconds for which a destination gets no leases of a process that had no room for it
_DESTINATIONS = 1000  # that have been refused, remembered


class _Connection(Protocol):
    """To one process that delivers. `lease`: the number that it is registered with."""

    log = Logger()
    transport: Any

    def __init__(self, sender: Sender, process: int, lease: int) -> None:
        self._sender, self._process, self.lease = sender, process, lease
        self._replies = ReplyReader()
        self._refused: dict[Refused, float] = {}  # until when
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
        try:
            for reply in self._replies.feed(data):
                self._replied(reply)
        except BadFrame as error:
            self.log.warn("a process that delivers answered what cannot be read: {error}", error=str(error))
            self.transport.abortConnection()

    def _replied(self, reply: bytes | Refused) -> None:
        if isinstance(reply, Refused):
            if len(self._refused) >= _DESTINATIONS:
                self._refused.clear()
            self._refused[reply] = self._sender.now() + _REFUSED
        elif reply != FILE_READ:
            self.behind = reply == BEHIND
            self._sender.changed()
        elif self._files:
            self._files.popleft()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._files.clear()
        self._sender.lost(self._process)

    @property
    def full(self) -> bool:
        """It reads more slowly than this process accepts: what does not fit is not passed on."""
        return self._waiting >= _WAITING or len(self._files) >= _FILES

    def has_room(self, destination: str, bulk: bool) -> bool:
        """Whether emails to this destination may be handed over."""
        return not self.full and self._refused.get(Refused(destination, bulk), 0.0) <= self._sender.now()

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
    now: Callable[[], float] = attrs.field(default=attrs.Factory(lambda self: self.reactor.seconds, takes_self=True))
    _connections: dict[int, _Connection] = attrs.field(factory=dict, init=False)
    _connecting: set[int] = attrs.field(factory=set, init=False)
    _turns: Any = attrs.field(factory=lambda: cycle(()), init=False)
    _next: _Connection | None = attrs.field(default=None, init=False)
    _region: str = attrs.field(default="", init=False)
    # Emails that are being committed, and their recipients then
    _passed: dict[UUID, tuple[_Connection, tuple[NewRecipient, ...]]] = attrs.field(factory=dict, init=False)

    async def look(self) -> None:
        """Connect to the processes that are new, and forget those that have ended."""
        running = await self.running()
        own = next((each for each in running if each.id == self.number()), None)
        if own is None:
            return
        self._region = own.region
        here = own.host, own.region
        beside = {each.pid: each.id for each in running if "delivery" in each.roles and (each.host, each.region) == here}
        for gone in self._connections.keys() - beside.keys():
            self._connections[gone].transport.loseConnection()
        for known in self._connections.keys() & beside.keys():
            self._connections[known].lease = beside[known]
        for new in beside.keys() - self._connections.keys() - self._connecting:
            self._connecting.add(new)
            endpoint = UNIXClientEndpoint(self.reactor, self.address(new), timeout=_CONNECT)
            connectProtocol(endpoint, _Connection(self, new, beside[new])).addErrback(lambda _, process=new: self.lost(process))

    def lease(self, destination: str, bulk: bool, region: str | None) -> int:
        """The lease to store the recipients of the next email at a destination with; 0: they must be queued. `pass_on` has to follow."""
        connection = self._next
        if connection is None or region != self._region or not connection.has_room(destination, bulk):
            return 0
        return connection.lease

    def pass_on(self, email: NewEmail) -> None:
        """To the process that has its leases, else to one of them, in turn, before the commit; `committed` or `dropped` follows.

        It is left to the queue if they are busy, or if the email must not be delivered from memory.
        """
        connection = self._next
        if email.lease is not None:
            connection = next((each for each in self._connections.values() if each.lease == email.lease), None)
        if connection is None:
            return
        self._next = next(self._turns)
        message = self._message(email, connection)
        if message is None and email.lease is None:
            return
        self._passed[email.email_id] = connection, email.recipients
        in_file = message.file if isinstance(message, Spooled) else None
        body = _section(message) if isinstance(message, Spooled) else message
        connection.write(Passed(email.email_id, email.envelope, body, self._leased_recipients(email)), in_file)

    def _message(self, email: NewEmail, connection: _Connection) -> bytes | Spooled | None:
        """What is passed on of its message."""
        message = email.message
        if not isinstance(message, bytes | Spooled) or len(_in_memory(message)) > LARGEST or connection.full:
            return None
        if email.scheduled_at is not None or email.topic_id is not None or email.region != self._region:
            return None
        if email.encrypted and isinstance(message, Spooled):  # the file is not, and would stay longer on the disk
            return None
        return message

    def _leased_recipients(self, email: NewEmail) -> LeasedRecipients | None:
        if email.lease is None:
            return None
        return LeasedRecipients(
            email.lease, self.now(), email.account_id, email.domain_id, email.region, email.bulk, email.expires_at, email.recipients
        )

    def committed(self, email: NewEmail) -> None:
        """`email` as it is stored: without leases for recipients that are suppressed."""
        connection, recipients = self._passed.pop(email.email_id, (None, ()))
        if connection is not None:
            suppressed = [n for n, (old, new) in enumerate(zip(recipients, email.recipients, strict=True)) if old.leased and not new.leased]
            connection.write(Committed(email.email_id, tuple(suppressed)))

    def dropped(self, email_id: UUID) -> None:
        """What is not committed is not kept by others, either."""
        connection, _ = self._passed.pop(email_id, (None, ()))
        if connection is not None:
            connection.write(Dropped(email_id))

    async def stop(self) -> None:
        for connection in list(self._connections.values()):
            connection.transport.loseConnection()

    # Called by connections

    def opened(self, process: int, connection: _Connection) -> None:
        self._connecting.discard(process)
        self._connections[process] = connection
        self._turn()

    def lost(self, process: int) -> None:
        self._connecting.discard(process)
        if self._connections.pop(process, None) is not None:
            self._turn()
            self.changed()

    def _turn(self) -> None:
        self._turns = cycle(list(self._connections.values()))
        self._next = next(self._turns, None)

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
