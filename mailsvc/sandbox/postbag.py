"""Takes the sandbox's reports to the port where mail for return paths comes in, over SMTP as any other server would."""

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

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before each further try: what it is about may not be settled yet
MOST = 1000  # reports on their way at once; development needs no more


@attrs.define(eq=False)
class Postbag:
    """`where` tells the port on this machine, None while there is none."""

    log = Logger()

    reactor: Any
    where: Callable[[], int | None]
    _under_way: set[Deferred[None]] = attrs.field(factory=set, init=False)

    def post(self, to: str, message: bytes) -> None:
        """Send `message` from the null reverse-path; nobody waits for it."""
        if len(self._under_way) >= MOST:
            return
        sending: Deferred[None] = Deferred.fromCoroutine(self._insist(to, message))
        self._under_way.add(sending)

        def over(result: object) -> None:
            self._under_way.discard(sending)

        sending.addBoth(over)

    async def stop(self) -> None:
        for sending in list(self._under_way):
            sending.cancel()

    async def _insist(self, to: str, message: bytes) -> None:
        try:
            for pause in PAUSES:
                await deferLater(self.reactor, pause)
                if await self._try(to, message):
                    return
            self.log.warn("a report of the sandbox was not taken")
        except CancelledError:
            return

    async def _try(self, to: str, message: bytes) -> bool:
        """Whether there is nothing more to do: it was taken, or refused for good."""
        port = self.where()
        if port is None:
            return False
        endpoint = TCP4ClientEndpoint(self.reactor, "127.0.0.1", port, timeout=10)
        courier = SmtpClient(self.reactor, "sandbox.localhost", host="127.0.0.1", tls="none")
        try:
            await connectProtocol(endpoint, courier)
            await courier.ready
            result = await courier.deliver(Envelope("", (to,), len(message)), [message])
            await courier.quit()
        except (ConnectError, OSError, NotReady) as error:
            self.log.info("a report of the sandbox waits: {why}", why=str(error))
            return False
        reply = result.recipients[0]
        return reply is not None and not reply.transient
