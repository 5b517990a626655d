"""Sends the sandbox's reports to return paths over SMTP, as another mail server would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mailsvc.smtp.client.client import NotReady, SmtpClient
from mailsvc.smtp.client.envelope import Envelope

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each attempt: the delivery may not be settled yet
LIMIT = 1000  # reports in progress


@attrs.define(eq=False)
class ReportSender:
    """`port` returns the local port that accepts mail to return paths, None while it is not open."""

    log = Logger()

    reactor: Any
    port: Callable[[], int | None]
    _in_progress: set[Deferred[None]] = attrs.field(factory=set, init=False)

    def send(self, to: str, message: bytes) -> None:
        """Send `message` from the null reverse-path, in the background."""
        if len(self._in_progress) >= LIMIT:
            return
        sending: Deferred[None] = Deferred.fromCoroutine(self._send(to, message))
        self._in_progress.add(sending)

        def done(result: object) -> None:
            self._in_progress.discard(sending)

        sending.addBoth(done)

    async def stop(self) -> None:
        for sending in list(self._in_progress):
            sending.cancel()

    async def _send(self, to: str, message: bytes) -> None:
        try:
            for pause in PAUSES:
                await deferLater(self.reactor, pause)
                if await self._attempt(to, message):
                    return
            self.log.warn("a sandbox report was not accepted")
        except CancelledError:
            return

    async def _attempt(self, to: str, message: bytes) -> bool:
        """Whether the report was accepted, or refused permanently."""
        port = self.port()
        if port is None:
            return False
        endpoint = TCP4ClientEndpoint(self.reactor, "127.0.0.1", port, timeout=10)
        client = SmtpClient(self.reactor, "sandbox.localhost", host="127.0.0.1", tls="none")
        try:
            await connectProtocol(endpoint, client)
            await client.ready
            result = await client.deliver(Envelope("", (to,), len(message)), [message])
            await client.quit()
        except (ConnectError, OSError, NotReady) as error:
            self.log.info("a sandbox report is deferred: {reason}", reason=str(error))
            return False
        reply = result.recipients[0]
        return reply is not None and not reply.transient
