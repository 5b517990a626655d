"""BDAT over real connections: to a server that records it, and to mailsvc's own server, in clear text and inside TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest
import pytest_twisted
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.task import deferLater

from mailsvc.smtp.client.client import Envelope, SmtpClient
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.session import Session
from tests.smtp.dialogue import LISTENERS
from tests.smtp.harness import Mail, Recorder
from tests.smtp.listener import Certificate, Listener

BODY = b"Subject: x\r\n\r\n.dot\r\n" + b"y" * 70 + b"\r\n"
LARGE = [b"Subject: x\r\n\r\n", *[b".z" * 49 + b"\r\n"] * 50_000]


@attrs.define
class Ours:
    """Our own receiver on a port."""

    reactor: object
    recorders: list[Recorder] = attrs.field(factory=list)
    port: object = None
    receivers: ServerFactory | None = None

    def open(self, certificate: Certificate) -> None:
        from mailsvc.smtp.server.certificates import server_context

        listener = attrs.evolve(LISTENERS["open"], context=server_context(certificate.certificate, certificate.key))
        self.receivers = ServerFactory(listener, self._welcome, self.reactor)
        self.port = self.reactor.listenTCP(0, self.receivers, interface="127.0.0.1")  # type: ignore[attr-defined]

    def _welcome(self, session: Session) -> Recorder:
        self.recorders.append(Recorder(session))
        return self.recorders[-1]

    async def connect(self, **options) -> SmtpClient:
        endpoint = TCP4ClientEndpoint(self.reactor, "127.0.0.1", self.port.getHost().port)  # type: ignore[attr-defined]
        client = await connectProtocol(endpoint, SmtpClient(self.reactor, "me.example", **options))
        await client.ready
        return client

    @property
    def mails(self) -> list[Mail]:
        return [mail for recorder in self.recorders for mail in recorder.mails]


@pytest_twisted.async_yield_fixture
async def ours(reactor, certificate: Certificate) -> AsyncIterator[Ours]:
    ours = Ours(reactor)
    ours.open(certificate)
    yield ours
    await ours.port.stopListening()  # type: ignore[attr-defined]
    for _ in range(6000):
        if not ours.receivers.live:
            return
        await deferLater(reactor, 0.01)
    raise AssertionError("a connection is left")


def envelope(*recipients: str, size: int = len(BODY), sender: str = "b@example.net") -> Envelope:
    return Envelope(sender, recipients or ("to@example.org",), size)


def yes() -> bool:
    return True


# The write guard


@pytest_twisted.ensureDeferred
async def test_a_large_message_is_withheld_in_the_middle(reactor, listener: Listener) -> None:
    client = await listener.connect(reactor)
    await client.ready
    checks: list[int] = []
    result = await client.deliver(envelope(size=sum(map(len, LARGE))), LARGE, lambda: not checks.append(1) and len(checks) < 2, "together")
    assert result.final is None and len(checks) >= 2 and result.lost is not None
    await listener.closed
    assert listener.messages == [] and listener.commands[-1] == b"BDAT"


@pytest_twisted.ensureDeferred
async def test_a_close_after_the_message(reactor, listener: Listener) -> None:
    listener.actions[b"LAST"] = lambda server: server.transport.abortConnection()
    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(), [BODY], yes, "together")
    assert (result.sent_dot, result.final, result.unchunked) == (True, None, True)
    await client.when_closed()
    assert listener.messages == [BODY] and len(listener.servers) == 1


# Our own receiver


@pytest.mark.parametrize("policy", ["none", "required"])
@pytest_twisted.ensureDeferred
async def test_mailsvc_server_accepts_bdat(ours: Ours, policy: str) -> None:
    client = await ours.connect(tls=policy)
    for pieces in ([BODY], LARGE, [b"a", BODY]):
        result = await client.deliver(envelope("a@d.example", "unknown@d.example", size=sum(map(len, pieces))), pieces, yes, "together")
        assert [reply.code for reply in result.recipients if reply] == [250, 550]
        assert "C: BDAT" in result.transcript and "C: DATA" not in result.transcript
    assert [mail.body for mail in ours.mails] == [BODY, b"".join(LARGE), b"a" + BODY]
    assert [mail.recipients for mail in ours.mails] == [["a@d.example"]] * 3
    await client.quit()


@pytest_twisted.ensureDeferred
async def test_mailsvc_server_refuses_bdat(ours: Ours) -> None:
    client = await ours.connect(tls="none")
    refused = [
        (envelope("a@d.example", sender="refused@e.example"), [550]),
        (envelope("unknown@d.example"), [550]),
        (envelope("unknown@d.example", "a@d.example", sender="full@e.example"), [550, 452]),
        (envelope("a@d.example", sender="down@e.example"), [451]),
    ]
    for refused_envelope, codes in refused:
        result = await client.deliver(refused_envelope, [BODY], yes, "together")
        assert [reply.code for reply in result.recipients if reply] == codes
        assert client.usable, "a refused chunk is read to its end"
    assert ours.mails == []
    result = await client.deliver(envelope("a@d.example"), [BODY], yes, "together")
    assert [mail.body for mail in ours.mails] == [BODY]
    await client.quit()
