"""A minimal SMTP server on a real port, which tests can make misbehave."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Protocol, ServerFactory
from zope.interface import implementer

from mailsvc.smtp.client.client import SmtpClient


@attrs.define(eq=False)
class Certificate:
    """Self-signed, for `host`, as PEM files."""

    key: Path
    certificate: Path

    @classmethod
    def make(cls, folder: Path, host: str = "mx.example.org", days: int = 1) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        now = datetime.datetime.now(datetime.UTC)
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=10))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        files = cls(folder / f"{host}{days}.key", folder / f"{host}{days}.pem")
        files.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return files


@implementer(IOpenSSLServerConnectionCreator)
class _Contexts:
    def __init__(self, context: SSL.Context) -> None:
        self._context = context

    def serverConnectionForTLS(self, _protocol: object) -> SSL.Connection:
        return SSL.Connection(self._context, None)


class Server(Protocol):
    """Accepts mail as RFC 5321 says. `listener.actions[b"VERB"]` replaces its reaction to a command."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.buffer = b""
        self.body: bytes | None = None
        self.chunk = 0  # bytes of a message by BDAT
        self.secured = False

    def connectionMade(self) -> None:
        self.listener.servers.append(self)
        self.act(b"CONNECT", lambda: self.say("220 mx.example.org ESMTP"))

    def connectionLost(self, _reason: object = None) -> None:
        self.listener.closed.callback(None) if not self.listener.closed.called else None

    def dataReceived(self, data: bytes) -> None:
        self.buffer += data
        while self.body is not None or b"\r\n" in self.buffer:
            if self.body is None:
                line, self.buffer = self.buffer.split(b"\r\n", 1)
                verb = line.split(b" ")[0].split(b":")[0].upper()
                if verb == b"BDAT" and verb not in self.listener.actions:
                    self.listener.commands.append(verb)
                    self.body, self.chunk = b"", int(line.split(b" ")[1])
                    continue
                self.act(verb, lambda verb=verb: self.command(verb))
            elif not self.message():
                return

    def message(self) -> bool:
        if self.chunk:
            if len(self.buffer) < self.chunk:
                return False
            self.listener.messages.append(self.buffer[: self.chunk])
            self.body, self.buffer, self.chunk = None, self.buffer[self.chunk :], 0
            self.act(b"LAST", lambda: self.say("250 2.0.0 queued"))
            return True
        whole = b"\r\n" + self.buffer
        end = whole.find(b"\r\n.\r\n")
        if end < 0:
            return False
        self.body, self.buffer = None, whole[end + 5 :]
        self.listener.messages.append(whole[2 : end + 2].replace(b"\r\n..", b"\r\n.").removeprefix(b".") if end else b"")
        self.act(b".", lambda: self.say("250 2.0.0 queued"))
        return True

    def act(self, verb: bytes, default: Callable[[], None]) -> None:
        self.listener.commands.append(verb)
        action = self.listener.actions.get(verb)
        if action is not None:
            action(self)
        else:
            default()

    def command(self, verb: bytes) -> None:
        if verb == b"EHLO":
            self.say(
                *(
                    ["250-mx", "250-CHUNKING", "250-PIPELINING"]
                    if self.secured or not self.listener.context
                    else ["250-mx", "250-STARTTLS"]
                ),
                "250 8BITMIME",
            )
        elif verb == b"STARTTLS":
            self.say("220 go")
            self.secure()
        elif verb == b"DATA":
            self.say("354 go")
            self.body = b""
        elif verb == b"QUIT":
            self.say("221 bye")
            self.transport.loseConnection()
        else:
            self.say("250 ok")

    def secure(self) -> None:
        assert self.listener.context is not None
        self.secured = True
        self.transport.startTLS(_Contexts(self.listener.context))

    def say(self, *lines: str) -> None:
        self.transport.write("".join(f"{line}\r\n" for line in lines).encode())


@attrs.define(eq=False)
class Listener:
    """`open` listens; `connect` connects a client through a real endpoint."""

    context: SSL.Context | None = None
    actions: dict[bytes, Callable[[Server], Any]] = attrs.field(factory=dict)
    servers: list[Server] = attrs.field(factory=list)
    commands: list[bytes] = attrs.field(factory=list)
    messages: list[bytes] = attrs.field(factory=list)
    names: list[bytes | None] = attrs.field(factory=list)  # requested by clients with SNI
    closed: Deferred[None] = attrs.field(factory=Deferred)
    port: Any = None

    def use(self, certificate: Certificate, version: int = SSL.TLS1_3_VERSION) -> Listener:
        self.context = context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.use_privatekey_file(str(certificate.key))
        context.use_certificate_file(str(certificate.certificate))
        context.set_min_proto_version(version)
        context.set_max_proto_version(version)
        context.set_tlsext_servername_callback(lambda connection: self.names.append(connection.get_servername()))
        return self

    def open(self, reactor: Any) -> Listener:
        factory = ServerFactory()
        factory.buildProtocol = lambda _address: Server(self)  # type: ignore[method-assign]
        self.port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        return self

    async def connect(self, reactor: Any, **options: Any) -> SmtpClient:
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self.port.getHost().port)
        return await connectProtocol(endpoint, SmtpClient(reactor, "me.example", **options))
