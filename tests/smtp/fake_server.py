"""A server played by hand: what it says goes in by octets, what the client wrote is read back. No network, no waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mailsvc.smtp.client.client import Envelope, Result, SmtpClient

GREETING = "220 mx.example.org ESMTP"
PIPELINING = ("250-mx.example.org hello", "250-PIPELINING", "250-SIZE 1000000", "250-8BITMIME", "250 ENHANCEDSTATUSCODES")
PLAIN = ("250 mx.example.org",)
CHUNKING = ("250-mx.example.org hello", "250-PIPELINING", "250-CHUNKING", "250-SIZE 1000000", "250 8BITMIME")
BODY = b"Subject: x\r\n\r\n.dot\r\nend\r\n"
STUFFED = b"Subject: x\r\n\r\n..dot\r\nend\r\n.\r\n"


class Wire(StringTransport):
    """A connection that records what is done to it. TLS is only noted: what follows is still read in clear."""

    no_delay = False
    getHandle: Any = None
    secured: Any = None
    aborted = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = enabled

    def startTLS(self, options: Any) -> None:
        self.secured = options

    def abortConnection(self) -> None:
        self.aborted = True
        super().abortConnection()


class FakeServer:
    """`cuts` are where the server's octets are cut into chunks: every number of octets in turn, over and over."""

    def __init__(self, cuts: Iterable[int] = (), **options: Any) -> None:
        self.clock = Clock()
        self.wire = Wire()
        self.cuts = tuple(cuts)
        self._turn = 0
        options.setdefault("tls", "none")
        self.client = SmtpClient(self.clock, "me.example", **options)
        self.ready_result = results_of(self.client.ready)
        self.client.makeConnection(self.wire)

    def reply(self, *lines: str) -> FakeServer:
        """Complete lines of the server."""
        return self.send("".join(f"{line}\r\n" for line in lines).encode())

    def send(self, octets: bytes) -> FakeServer:
        while octets:
            size = len(octets)
            if self.cuts:
                size = self.cuts[self._turn % len(self.cuts)]
                self._turn += 1
            chunk, octets = octets[:size], octets[size:]
            if not self.wire.disconnecting:
                self.client.dataReceived(chunk)
        return self

    def received(self) -> bytes:
        """What the client wrote since this was asked last."""
        written: bytes = self.wire.value()
        self.wire.clear()
        return written

    def close(self, error: Exception | None = None) -> FakeServer:
        self.client.connectionLost(Failure(error or ConnectionDone()))
        return self

    def handshake(self) -> FakeServer:
        """TLS is up."""

        class Handle:
            def get_protocol_version_name(self) -> str:
                return "TLSv1.3"

            def get_cipher_name(self) -> str:
                return "TLS_AES_128_GCM_SHA256"

        self.wire.getHandle = Handle
        self.client.handshakeCompleted()
        return self

    def stop_reading(self) -> FakeServer:
        """From now on one slice of a message is read, and no more."""
        write = self.wire.write

        def once(octets: bytes) -> None:
            write(octets)
            if self.wire.producer:
                self.wire.producer.pauseProducing()

        self.wire.write = once  # type: ignore[method-assign]
        return self

    def advance(self, seconds: float) -> FakeServer:
        self.clock.advance(seconds)
        return self

    def deliver(
        self, *recipients: str, body: bytes | Iterable[bytes] = BODY, may_send_dot: Any = None, chunking: bool = False, **envelope: Any
    ) -> list[Any]:
        """The Result, or what it failed with, is in the list as soon as it is known. By BDAT the size is results_of, when it can be."""
        pieces = [body] if isinstance(body, bytes) else body
        envelope.setdefault("sender", "b@example.net")
        if chunking and not hasattr(pieces, "__next__"):
            envelope.setdefault("size", sum(map(len, pieces)))
        asked = Envelope(recipients=recipients or ("to@example.org",), **envelope)
        return results_of(self.client.deliver(asked, pieces, may_send_dot or (lambda: True), "together" if chunking else "data"))


def results_of(deferred: Deferred[Any]) -> list[Any]:
    """What the Deferred fires with, as soon as it does."""
    news: list[Any] = []

    def failed(failure: Failure) -> None:
        news.append(failure.value)

    deferred.addCallbacks(news.append, failed)
    return news


def ready(*, cuts: Iterable[int] = (), ehlo: tuple[str, ...] = PIPELINING, **options: Any) -> FakeServer:
    """A connection that waits for its first message."""
    server = FakeServer(cuts, **options).reply(GREETING).reply(*ehlo)
    assert server.client.usable
    server.received()
    return server


def codes(result: Result) -> list[int | None]:
    return [reply.code if reply else None for reply in result.recipients]
