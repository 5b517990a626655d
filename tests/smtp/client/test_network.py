"""The client over real connections: TCP and TLS, endpoints, back-pressure, servers that disappear."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import pytest_twisted
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from mailsvc.net.dns import Tlsa
from mailsvc.smtp.client.client import Envelope, Lost, SmtpClient, Timeouts, TlsFailed
from mailsvc.smtp.client.plan import SendMode
from mailsvc.smtp.client.tls import by_dane, unverified, verified
from tests.smtp.listener import Certificate, Listener

BODY = b"Subject: x\r\n\r\n.dot\r\n" + b"y" * 70 + b"\r\n"
LARGE = [b".z" * 49 + b"\r\n"] * 50_000


def envelope(body: bytes = BODY) -> Envelope:
    return Envelope("b@example.net", ("to@example.org",), len(body))


async def mailed(client: SmtpClient) -> None:
    await client.ready
    for _ in range(2):
        result = await client.deliver(envelope(), [BODY])
        assert result.final is not None and result.final.code == 250
    await client.quit()


# TCP


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("yeses", [0, 1])
@pytest.mark.parametrize(("mode", "end"), [("data", b"."), ("together", b"BDAT")])
@pytest_twisted.ensureDeferred
async def test_a_message_can_be_withheld_until_the_socket_has_it(
    reactor, listener: Listener, certificate: Certificate, secured: bool, yeses: int, mode: SendMode, end: bytes
) -> None:
    if secured:
        listener.use(certificate)
    client = await listener.connect(
        reactor, tls="required" if secured else "none", tls_options=unverified("mx.example.org") if secured else None
    )
    await client.ready
    answers = [True] * yeses
    result = await client.deliver(envelope(), [BODY], lambda: bool(answers and answers.pop()), mode)
    assert (result.final, result.sent_dot, answers) == (None, yeses == 1, [])
    assert result.lost is not None
    await listener.closed
    assert listener.messages == [] and end not in listener.commands


@pytest_twisted.ensureDeferred
async def test_a_large_message_is_withheld_in_the_middle_and_others_are_checked_twice(reactor, listener: Listener) -> None:
    client = await listener.connect(reactor)
    await client.ready
    checks: list[int] = []
    result = await client.deliver(envelope(), [BODY], lambda: not checks.append(1))
    assert result.final is not None and len(checks) == 2
    checks.clear()
    result = await client.deliver(envelope(b"".join(LARGE)), LARGE, lambda: not checks.append(1) and len(checks) < 2)
    assert result.final is None and result.lost is not None
    await listener.closed
    assert listener.messages == [BODY]


@pytest_twisted.ensureDeferred
async def test_two_messages_and_quit(reactor, listener: Listener) -> None:
    client = await listener.connect(reactor)
    await mailed(client)
    assert listener.messages == [BODY, BODY]
    assert listener.commands == [b"CONNECT", b"EHLO", *[b"MAIL", b"RCPT", b"DATA", b"."] * 2, b"QUIT"]


@pytest_twisted.ensureDeferred
async def test_a_close_after_the_greeting_fails_ready(reactor, listener: Listener) -> None:
    def leave(server):
        server.say("220 mx")
        server.transport.loseConnection()

    listener.actions[b"CONNECT"] = leave
    client = await listener.connect(reactor)
    with pytest.raises(Lost) as lost:
        await client.ready
    assert "220 mx" in lost.value.transcript
    await client.when_closed()
    assert len(listener.servers) == 1, "one connection, never a second without being told"


@pytest_twisted.ensureDeferred
async def test_a_large_message_arrives_whole_and_in_bounded_memory(reactor, listener: Listener) -> None:
    waiting = []

    def pieces():
        for piece in LARGE:
            transport = client.transport
            waiting.append(len(transport.dataBuffer) + transport._tempDataLen)
            yield piece

    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE)), pieces())
    assert result.final.code == 250
    assert listener.messages == [b"".join(LARGE)]
    assert max(waiting) <= 400_000


@pytest_twisted.ensureDeferred
async def test_an_early_refusal_before_a_close_is_read(reactor, listener: Listener) -> None:
    def refuse(server):
        server.say("354 go")
        server.say("552 5.3.4 too big")
        server.transport.loseConnection()

    listener.actions[b"DATA"] = refuse
    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE)), LARGE)
    assert result.recipients[0].code == 552
    assert result.sent_dot is False
    await client.when_closed()
    assert listener.commands[-1] == b"DATA", "no command in the message"


@pytest_twisted.ensureDeferred
async def test_a_server_that_never_reads_the_message(reactor, listener: Listener) -> None:
    def freeze(server):
        server.say("354 go")
        server.transport.pauseProducing()

    listener.actions[b"DATA"] = freeze
    client = await listener.connect(reactor, timeouts=Timeouts(block=0.3))
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE * 4)), LARGE * 4)
    assert "timed out" in result.lost
    assert result.sent_dot is False
    await client.when_closed()


@pytest_twisted.ensureDeferred
async def test_a_reset_in_the_middle_of_the_message(reactor, listener: Listener) -> None:
    def reset(server):
        server.say("354 go")
        server.transport.setTcpKeepAlive(True)
        reactor.callLater(0, server.transport.abortConnection)

    listener.actions[b"DATA"] = reset
    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE)), LARGE)
    assert result.lost and result.recipients == (None,)
    assert result.sent_dot is False


@pytest_twisted.ensureDeferred
async def test_a_close_after_the_dot(reactor, listener: Listener) -> None:
    listener.actions[b"."] = lambda server: server.transport.abortConnection()
    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(), [BODY])
    assert (result.sent_dot, result.final, result.recipients) == (True, None, (None,))
    assert result.lost
    await client.when_closed()
    assert listener.messages == [BODY]
    assert len(listener.servers) == 1


@pytest_twisted.ensureDeferred
async def test_a_421_while_the_connection_is_idle(reactor, listener: Listener) -> None:
    client = await listener.connect(reactor)
    await client.ready
    listener.servers[0].say("421 4.4.2 idle")
    listener.servers[0].transport.loseConnection()
    await client.when_closed()
    assert not client.usable
    result = await client.deliver(envelope(), [BODY])
    assert result.stale and not result.sent_dot


# TLS


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest.mark.parametrize("policy", ["opportunistic", "required"])
@pytest_twisted.ensureDeferred
async def test_mail_inside_tls(reactor, listener: Listener, certificate: Certificate, version: int, policy: str) -> None:
    listener.use(certificate, version)
    client = await listener.connect(reactor, tls=policy, host="mx.example.org")
    await mailed(client)
    assert listener.messages == [BODY, BODY]
    assert client.tls.startswith("TLSv1.2 " if version == SSL.TLS1_2_VERSION else "TLSv1.3 ")
    assert listener.names == [b"mx.example.org"]
    assert listener.commands[:4] == [b"CONNECT", b"EHLO", b"STARTTLS", b"EHLO"]


@pytest_twisted.ensureDeferred
async def test_no_tls_if_the_policy_is_none(reactor, listener: Listener, certificate: Certificate) -> None:
    listener.use(certificate)
    client = await listener.connect(reactor, tls="none")
    await mailed(client)
    assert b"STARTTLS" not in listener.commands


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_a_large_message_inside_tls(reactor, listener: Listener, certificate: Certificate, version: int) -> None:
    listener.use(certificate, version)
    client = await listener.connect(reactor, host="mx.example.org")
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE)), LARGE)
    assert result.final.code == 250
    assert listener.messages == [b"".join(LARGE)]


@pytest_twisted.ensureDeferred
async def test_a_verified_certificate(reactor, listener: Listener, certificate: Certificate) -> None:
    listener.use(certificate)
    options = verified("mx.example.org", str(certificate.certificate))
    client = await listener.connect(reactor, tls="required", tls_options=options)
    await mailed(client)
    assert listener.messages == [BODY, BODY]


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_an_ip_address(reactor, listener: Listener, tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path, "127.0.0.1")
    listener.use(certificate)
    options = verified("127.0.0.1", str(certificate.certificate))
    await mailed(await listener.connect(reactor, tls="required", tls_options=options))
    assert listener.names == [None], "an address is no server name"


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest.mark.parametrize("fault", ["name", "root", "expired"])
@pytest_twisted.ensureDeferred
async def test_an_invalid_certificate(
    reactor, listener: Listener, certificate: Certificate, tmp_path: Path, fault: str, version: int
) -> None:
    shown = Certificate.make(tmp_path, days=-1) if fault == "expired" else certificate
    listener.use(shown, version)
    if fault == "root":
        options, reason = verified("mx.example.org"), "the certificate is self-signed"
    elif fault == "name":
        options, reason = verified("mx.example.com", str(shown.certificate)), "the certificate is not for mx.example.com"
    else:
        options, reason = verified("mx.example.org", str(shown.certificate)), "the certificate has expired"
    client = await listener.connect(reactor, tls="required", tls_options=options)
    with pytest.raises(TlsFailed, match=reason):
        await client.ready
    await client.when_closed()
    assert listener.commands == [b"CONNECT", b"EHLO", b"STARTTLS"], "nothing was sent inside"


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest.mark.parametrize(
    ("host", "trusted", "days", "fault"),
    [
        ("mx.example.org", True, 30, None),
        ("mx.example.com", True, 30, "the certificate is not for mx.example.com"),
        ("mx.example.org", False, 30, "the certificate is self-signed"),
        ("mx.example.org", True, -1, "the certificate has expired"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_would_be_wrong_with_a_certificate_that_need_not_be_trusted(
    reactor, listener: Listener, tmp_path: Path, host: str, trusted: bool, days: int, fault: str | None, version: int
) -> None:
    shown = Certificate.make(tmp_path, days=days)
    listener.use(shown, version)
    client = await listener.connect(reactor, tls_options=unverified(host, str(shown.certificate) if trusted else None))
    await client.ready
    assert client.certificate_fault() == fault
    await client.quit()
    assert client.certificate_fault() is None  # no longer known


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest.mark.parametrize("usage", [2, 3])
@pytest_twisted.ensureDeferred
async def test_a_certificate_that_matches_dane(reactor, listener: Listener, certificate: Certificate, usage: int, version: int) -> None:
    listener.use(certificate, version)
    der = x509.load_pem_x509_certificate(certificate.certificate.read_bytes()).public_bytes(Encoding.DER)
    record = Tlsa(usage, 0, 1, hashlib.sha256(der).digest())
    options = by_dane([record], ["mx.example.org", "alias.example.net"])
    await mailed(await listener.connect(reactor, tls="required", tls_options=options))
    assert listener.messages == [BODY, BODY]
    listener.commands.clear()
    assert options.clientConnectionForTLS(None).get_servername() == b"mx.example.org"
    other = by_dane([Tlsa(usage, 0, 1, b"x" * 32)], ["mx.example.org"])
    client = await listener.connect(reactor, tls="required", tls_options=other)
    with pytest.raises(TlsFailed, match="no TLSA record matches the server's certificate"):
        await client.ready
    await client.when_closed()
    assert listener.commands == [b"CONNECT", b"EHLO", b"STARTTLS"], "nothing was sent inside"


@pytest_twisted.ensureDeferred
async def test_clear_text_instead_of_a_handshake(reactor, listener: Listener, certificate: Certificate) -> None:
    listener.use(certificate)
    listener.actions[b"STARTTLS"] = lambda server: (
        server.say("220 go"),
        reactor.callLater(0.05, server.say, "250-mx", "250 PIPELINING"),
    )
    client = await listener.connect(reactor)
    with pytest.raises(TlsFailed):
        await client.ready


@pytest_twisted.ensureDeferred
async def test_replies_injected_after_the_reply_to_starttls(reactor, listener: Listener, certificate: Certificate) -> None:
    listener.use(certificate)

    def inject(server):
        server.say("220 go", "250-mx", "250 PIPELINING")
        server.secure()

    listener.actions[b"STARTTLS"] = inject
    client = await listener.connect(reactor)
    with pytest.raises(TlsFailed, match="clear-text"):
        await client.ready
    await client.when_closed()
    assert listener.commands == [b"CONNECT", b"EHLO", b"STARTTLS"]


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_a_server_that_rejects_the_handshake(reactor, listener: Listener, certificate: Certificate, version: int) -> None:
    listener.use(certificate, version)
    listener.context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: False)
    client = await listener.connect(reactor)
    with pytest.raises(TlsFailed):
        await client.ready


@pytest_twisted.ensureDeferred
async def test_a_server_that_closes_during_the_handshake(reactor, listener: Listener, certificate: Certificate) -> None:
    listener.use(certificate)
    listener.actions[b"STARTTLS"] = lambda server: (server.say("220 go"), server.transport.loseConnection())
    client = await listener.connect(reactor)
    with pytest.raises(TlsFailed):
        await client.ready


@pytest_twisted.ensureDeferred
async def test_a_server_that_never_completes_the_handshake(reactor, listener: Listener, certificate: Certificate) -> None:
    def freeze(server):  # it must not read: a handshake can contain what looks like a line
        server.say("220 go")
        server.transport.pauseProducing()

    listener.use(certificate)
    listener.actions[b"STARTTLS"] = freeze
    client = await listener.connect(reactor, timeouts=Timeouts(tls=1))
    with pytest.raises(TlsFailed, match="timed out"):
        await client.ready
    await client.when_closed()


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_tls_cut_off_after_the_dot_is_uncertain(reactor, listener: Listener, certificate: Certificate, version: int) -> None:
    """No close_notify: what came before it still counts, and no reply came."""
    listener.use(certificate, version)
    listener.actions[b"."] = lambda server: server.transport.abortConnection()
    client = await listener.connect(reactor)
    await client.ready
    result = await client.deliver(envelope(), [BODY])
    assert (result.sent_dot, result.final) == (True, None)
    assert result.lost


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_a_server_inside_tls_that_never_reads(reactor, listener: Listener, certificate: Certificate, version: int) -> None:
    def freeze(server):
        server.say("354 go")
        reactor.callLater(0, server.transport.pauseProducing)

    listener.use(certificate, version)
    listener.actions[b"DATA"] = freeze
    client = await listener.connect(reactor, timeouts=Timeouts(block=0.3))
    await client.ready
    result = await client.deliver(envelope(b"".join(LARGE * 4)), LARGE * 4)
    assert "timed out" in result.lost
    assert result.sent_dot is False
    await client.when_closed()


def test_contexts_are_shared() -> None:
    assert unverified("a.example")._context is unverified("b.example")._context
    assert verified("a.example")._context is verified("b.example")._context
    assert unverified("a.example")._context is not verified("a.example")._context
