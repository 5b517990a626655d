"""A fake server without a network: the test feeds its replies to the client and reads what the client wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mailsvc.smtp.client.client import Envelope, Result, SmtpClient
from mailsvc.smtp.client.plan import SendMode

GREETING = "220 mx.example.org ESMTP"
PIPELINING = ("250-mx.example.org hello", "250-PIPELINING", "250-SIZE 1000000", "250-8BITMIME", "250 ENHANCEDSTATUSCODES")
PLAIN = ("250 mx.example.org",)
CHUNKING = ("250-mx.example.org hello", "250-PIPELINING", "250-CHUNKING", "250-SIZE 1000000", "250 8BITMIME")
BODY = b"Subject: x\r\n\r\n.dot\r\nend\r\n"
STUFFED = b"Subject: x\r\n\r\n..dot\r\nend\r\n.\r\n"


class Wire(StringTransport):
    """A transport that records what is done to it. TLS is only recorded: data stays in clear text."""

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
    """`cuts`: the sizes of the pieces in which the server's data arrives, repeated over and over."""

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
        """Send complete reply lines."""
        return self.send("".join(f"{line}\r\n" for line in lines).encode())

    def send(self, data: bytes) -> FakeServer:
        while data:
            size = len(data)
            if self.cuts:
                size = self.cuts[self._turn % len(self.cuts)]
                self._turn += 1
            chunk, data = data[:size], data[size:]
            if not self.wire.disconnecting:
                self.client.dataReceived(chunk)
        return self

    def received(self) -> bytes:
        """What the client wrote since the last call."""
        written: bytes = self.wire.value()
        self.wire.clear()
        return written

    def close(self, error: Exception | None = None) -> FakeServer:
        self.client.connectionLost(Failure(error or ConnectionDone()))
        return self

    def handshake(self) -> FakeServer:
        """Complete the TLS handshake."""

        class Handle:
            def get_protocol_version_name(self) -> str:
                return "TLSv1.3"

            def get_cipher_name(self) -> str:
                return "TLS_AES_128_GCM_SHA256"

        self.wire.getHandle = Handle
        self.client.handshakeCompleted()
        return self

    def stop_reading(self) -> FakeServer:
        """Read only one slice of a message from now on."""
        write = self.wire.write

        def once(data: bytes) -> None:
            write(data)
            if self.wire.producer:
                self.wire.producer.pauseProducing()

        self.wire.write = once  # type: ignore[method-assign]
        return self

    def advance(self, seconds: float) -> FakeServer:
        self.clock.advance(seconds)
        return self

    def deliver(
        self,
        *recipients: str,
        body: bytes | Iterable[bytes] = BODY,
        may_send_dot: Any = None,
        chunking: bool = False,
        mode: SendMode = "data",
        **envelope: Any,
    ) -> list[Any]:
        """The list gets the Result or the error as soon as it is known. With `chunking` the size is declared if possible."""
        pieces = [body] if isinstance(body, bytes) else body
        envelope.setdefault("sender", "b@example.net")
        if chunking and not hasattr(pieces, "__next__"):
            envelope.setdefault("size", sum(map(len, pieces)))
        sent = Envelope(recipients=recipients or ("to@example.org",), **envelope)
        return results_of(self.client.deliver(sent, pieces, may_send_dot or (lambda: True), "together" if chunking else mode))


def results_of(deferred: Deferred[Any]) -> list[Any]:
    """A list that gets the result or error of the Deferred."""
    results: list[Any] = []

    def failed(failure: Failure) -> None:
        results.append(failure.value)

    deferred.addCallbacks(results.append, failed)
    return results


def ready(*, cuts: Iterable[int] = (), ehlo: tuple[str, ...] = PIPELINING, **options: Any) -> FakeServer:
    """A connection that is ready for its first message."""
    server = FakeServer(cuts, **options).reply(GREETING).reply(*ehlo)
    assert server.client.usable
    server.received()
    return server


def codes(result: Result) -> list[int | None]:
    return [reply.code if reply else None for reply in result.recipients]
