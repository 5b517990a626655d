"""The daemon's end of the signing process: starts it, gives it hashes, and ends it if it does not answer."""

from __future__ import annotations

import os
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import Factory, ProcessProtocol, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.delivery.signing import process
from mailsvc.delivery.signing.frames import READY, FrameReader, Hashes, NewKey, written
from mailsvc.mail.authentication.dkim import SigningKey
from mailsvc.net.writing import write

log = Logger()

DEADLINE = 10.0  # seconds for an answer; then the child is killed
AGAIN = 5.0  # seconds after its end until it may be started again
LEAVE = 2.0  # seconds to end after the socket was closed; then it is killed
MOST = 512  # hashes that may wait for their signatures
KEYS = 2000  # that the child knows, more than `sign` gets at once; the least recently used one makes room
PROGRAM = (sys.executable, "-m", process.__name__)
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "OPENSSL_CONF", "OPENSSL_MODULES")

Request = tuple[SigningKey, bytes]


class Lost(Exception):
    """The child ended before it had answered."""


@attrs.define(eq=False)
class SigningProcess:
    """`start` it once or again after its end. While it is `ready`, `sign` hashes.

    `reactor` has spawnProcess, adoptStreamConnection, callLater and seconds. `program` is the command of the child.
    """

    reactor: Any = attrs.field(repr=False)
    program: Sequence[str] = PROGRAM
    _link: _Link | None = attrs.field(default=None, init=False)
    _process: Any = attrs.field(default=None, init=False)
    _ended_at: float | None = attrs.field(default=None, init=False)
    _stopping: Deferred[None] | None = attrs.field(default=None, init=False)

    @property
    def ready(self) -> bool:
        return self._link is not None and self._link.ready and self._link.waiting < MOST

    def start(self) -> None:
        """Unless it runs, has just ended, or is being stopped."""
        just_ended = self._ended_at is not None and self.reactor.seconds() < self._ended_at + AGAIN
        if self._process is not None or just_ended or self._stopping is not None:
            return
        try:
            self._start()
        except OSError as error:
            self._ended(f"{error.strerror}.")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            self._link = link = _Link(self.reactor, self._kill)
            self.reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, Factory.forProtocol(lambda: link))
            files = {0: theirs.fileno(), **_outputs()}
            self._process = self.reactor.spawnProcess(_Watch(self._ended), self.program[0], self.program, _environment(), childFDs=files)

    def sign(self, requests: Sequence[Request]) -> Deferred[list[bytes]]:
        """The signatures in the order of the requests. Fails with Lost."""
        assert self._link is not None
        return self._link.sign(requests)

    async def stop(self) -> None:
        """End it, by force if necessary."""
        self._stopping = Deferred()
        if self._process is None:
            return
        assert self._link is not None
        self._link.close()
        timer = self.reactor.callLater(LEAVE, self._kill)
        await self._stopping
        if timer.active():
            timer.cancel()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessExitedAlready):
                self._process.signalProcess("KILL")

    def _ended(self, reason: str) -> None:
        self._process, self._ended_at = None, self.reactor.seconds()
        if self._stopping is not None:
            self._stopping.callback(None)
            return
        log.warn("The signing process ended: {reason} Messages are signed without it until it is started again.", reason=reason)
        if self._link is not None:
            self._link.close()
            self._link = None


class _Watch(ProcessProtocol):
    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended

    def processExited(self, reason: Failure) -> None:
        self._ended(reason.getErrorMessage())


class _Link(Protocol):
    """The connection to one child."""

    transport: Any = None

    def __init__(self, reactor: Any, on_silence: Callable[[], None]) -> None:
        self._reactor, self._on_silence = reactor, on_silence
        self.ready, self.waiting = False, 0  # `waiting`: hashes
        self._reader = FrameReader()
        self._expected: deque[tuple[int, list[bytes], Deferred[list[bytes]]]] = deque()
        self._keys: OrderedDict[int, tuple[int, SigningKey]] = OrderedDict()  # by id(), and each with its number
        self._timer: Any = None

    def sign(self, requests: Sequence[Request]) -> Deferred[list[bytes]]:
        result: Deferred[list[bytes]] = Deferred()
        frames: list[NewKey | Hashes] = []
        numbered = [(self._number(key, frames), digest) for key, digest in requests]
        frames.append(Hashes(numbered))
        self._expected.append((len(requests), [], result))
        self.waiting += len(requests)
        if self._timer is None:
            self._timer = self._reactor.callLater(DEADLINE, self._silent)
        write(self.transport, b"".join(map(written, frames)))
        return result

    def _number(self, key: SigningKey, frames: list[NewKey | Hashes]) -> int:
        """The number by which the child knows the key. If it does not, adds a frame that says so."""
        known = self._keys.get(id(key))
        if known is not None:
            self._keys.move_to_end(id(key))
            return known[0]
        number = len(self._keys) if len(self._keys) < KEYS else self._keys.popitem(last=False)[1][0]
        self._keys[id(key)] = number, key
        frames.append(NewKey(number, key.algorithm, key.der()))
        return number

    def dataReceived(self, data: bytes) -> None:
        if self._timer is not None:
            self._timer.reset(DEADLINE)
        for frame in self._reader.feed(data):
            if frame == READY:
                self.ready = True
            else:
                self._take(frame)
        self._rest()

    def _take(self, signature: bytes) -> None:
        count, made, result = self._expected[0]
        made.append(signature)
        if len(made) == count:
            self._expected.popleft()
            self.waiting -= count
            result.callback(made)

    def _rest(self) -> None:
        if not self._expected and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _silent(self) -> None:
        self._timer = None
        log.warn("The signing process has not answered for {seconds:.0f} s.", seconds=DEADLINE)
        self._on_silence()

    def close(self) -> None:
        self.ready = False
        if self.transport is not None:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.ready = False
        lost, self._expected = self._expected, deque()
        self._rest()
        for _, _, result in lost:
            result.errback(Lost())


def _outputs() -> dict[int, int]:
    """The standard output and error of this process, as far as they are open."""
    return {number: number for number in (1, 2) if Path(f"/dev/fd/{number}").exists()}


def _environment() -> Mapping[str, str]:
    """What the child needs to find modules and libraries. The rest may contain secrets."""
    found = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return found | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
