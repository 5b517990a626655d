"""A message on its way onto a connection: in slices, in the coding of DATA or of BDAT, no faster than the peer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IConsumer, IPushProducer
from zope.interface import implementer

from mailsvc.smtp.client.dot_stuffing import Coding, slices


@implementer(IPushProducer)
class MessageWriter:
    """Writes the commands in `head`, then `pieces` and the end that `coding` makes of them, to `transport`.

    `may_end` is asked right before the slice that holds the end is written; when it says no, that slice is not.
    `moved` is told the octets of each other slice. `failed` gets what `pieces`, the coding or `may_end` raised;
    nothing is written after that. A message of one slice is one write, with its head.
    """

    def __init__(
        self,
        transport: IConsumer,
        head: bytes,
        pieces: Iterable[bytes],
        coding: Coding,
        may_end: Callable[[], bool],
        moved: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._transport = transport
        self._slices = slices(pieces)
        self._head, self._coding = head, coding
        self._may_end = may_end
        self._moved = moved
        self._failed = failed
        self._registered = False
        self._paused = False
        self._writing = False
        self._over = False

    def start(self) -> None:
        self.resumeProducing()

    def stop(self) -> None:
        """Write nothing more."""
        self._over = True
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        if self._writing or self._over:
            return
        self._writing = True
        try:
            while not self._paused and not self._over:
                self._write_slice()
        except Exception as error:
            self.stop()
            self._failed(error)
        finally:
            self._writing = False

    def stopProducing(self) -> None:
        """The connection is gone."""
        self._over = True
        self._registered = False

    def _write_slice(self) -> None:
        octets, last = next(self._slices)
        octets = self._head + self._coding.feed(octets)
        self._head = b""
        if last:
            octets += self._coding.end()
            self.stop()
            if self._may_end():
                self._transport.write(octets)
            return
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, True)
            if self._over:
                return
        self._transport.write(octets)
        self._moved(len(octets))
