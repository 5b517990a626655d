"""Writes a message to a connection in slices, coded for DATA or BDAT, no faster than the server reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IConsumer, IPushProducer
from zope.interface import implementer

from mailsvc.net.writing import write
from mailsvc.smtp.client.dot_stuffing import Coding, slices

AT_ONCE = 512 * 1024  # bytes that are sent in one turn of the reactor, however fast the server reads: about half a millisecond


@implementer(IPushProducer)
class MessageWriter:
    """Writes the commands in `head`, then `pieces` as `coding` codes them, to `transport`.

    `may_end` is called before the last slice is written; if it returns False, that slice is not written. `written` gets the size of each
    other slice. `failed` gets what `pieces`, the coding or `may_end` raised, and nothing is written after that. A message of one slice is
    one write together with its head.
    """

    def __init__(
        self,
        transport: IConsumer,
        head: bytes,
        pieces: Iterable[bytes],
        coding: Coding,
        may_end: Callable[[], bool],
        written: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._transport = transport
        self._slices = slices(pieces)
        self._head, self._coding = head, coding
        self._may_end = may_end
        self._slice_written = written
        self._failed = failed
        self._registered = False
        self._paused = False
        self._at_once = 0  # bytes in this turn
        self._writing = False
        self._done = False

    def start(self) -> None:
        self.resumeProducing()

    def stop(self) -> None:
        """Write nothing more."""
        self._done = True
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        if self._writing or self._done:
            return
        self._writing, self._at_once = True, 0
        try:
            while not self._paused and not self._done:
                self._write_slice()
        except Exception as error:
            self.stop()
            self._failed(error)
        finally:
            self._writing = False

    def stopProducing(self) -> None:
        """The connection is lost."""
        self._done = True
        self._registered = False

    def _write_slice(self) -> None:
        data, last = next(self._slices)
        data = self._head + self._coding.feed(data)
        self._head = b""
        if last:
            data += self._coding.end()
            self.stop()
            if self._may_end():
                write(self._transport, data)
            return
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, True)
            if self._done:
                return
        self._at_once += len(data)
        if self._at_once <= AT_ONCE:
            write(self._transport, data)
        else:  # the transport keeps it and pauses this producer
            self._transport.write(data)
        self._slice_written(len(data))
