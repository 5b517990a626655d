"""A message on its way onto a connection: in slices, stuffed, no faster than the peer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IConsumer, IPushProducer
from zope.interface import implementer

from mailsvc.smtp.stuffing import Stuffer, slices


@implementer(IPushProducer)
class Outflow:
    """Writes `pieces` and the final dot to `transport`.

    `may_end` is asked right before the slice that holds the final dot is written; when it says no, that slice is not.
    `moved` is told the octets of each other slice. `failed` gets what `pieces`, the stuffing or `may_end` raised;
    nothing is written after that. A message of one slice is one write.
    """

    def __init__(
        self,
        transport: IConsumer,
        pieces: Iterable[bytes],
        may_end: Callable[[], bool],
        moved: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._transport = transport
        self._slices = slices(pieces)
        self._stuffer = Stuffer()
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
        octets = self._stuffer.feed(octets)
        if last:
            octets += self._stuffer.end()
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
