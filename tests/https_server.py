"""A web server of another implementation on loopback, with certificates of an authority that a test trusts or not."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.ssl import Certificate, trustRootFromCertificates


class Authority:
    """A certificate authority. `root` is its certificate file."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "An authority")])
        self.root = self._certificate(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    @property
    def trust(self) -> Any:
        return trustRootFromCertificates([Certificate.loadPEM(self.root.public_bytes(serialization.Encoding.PEM))])

    def server(self, folder: Path, host: str, days: int = 1) -> ssl.SSLContext:
        """A certificate for `host`."""
        key, file = ec.generate_private_key(ec.SECP256R1()), folder / f"{host}{days}{id(self)}.pem"
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        created = self._certificate(name, key.public_key(), x509.SubjectAlternativeName([x509.DNSName(host)]), days)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(private + created.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _certificate(self, name: x509.Name, key: Any, extension: Any, days: int = 1) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        created = (
            x509.CertificateBuilder().issuer_name(self._name).subject_name(name).public_key(key).serial_number(x509.random_serial_number())
        )
        created = created.not_valid_before(now - datetime.timedelta(days=10)).not_valid_after(now + datetime.timedelta(days=days))
        return created.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())


@attrs.define(eq=False)
class Web:
    """A web server on loopback. It returns `status`, `headers` and `body`.

    `requests` has the host and path of each GET request; `posts` has the path, headers and body of each POST request.
    """

    contexts: dict[str, ssl.SSLContext]
    proof: str = "good"  # which of them the next connection gets
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)
    body: str = ""
    requests: list[tuple[str | None, str]] = attrs.field(factory=list)
    posts: list[tuple[str, Message, bytes]] = attrs.field(factory=list)
    server: Any = None

    def start(self) -> None:
        web = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                self.request = web.contexts[web.proof].wrap_socket(self.request, server_side=True)
                super().setup()

            def do_GET(self) -> None:
                web.requests.append((self.headers["Host"], self.path))
                self.answer()

            def do_POST(self) -> None:
                web.posts.append((self.path, self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer()

            def answer(self) -> None:
                self.send_response(web.status)
                for name, value in web.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(web.body.encode())

            def log_message(self, *_: object) -> None:
                """No access log."""

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that does not trust the certificate closes the connection during the handshake."""

        self.server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Diverted:
    """The reactor, with port 443 redirected to the web server, and a clock that is `later` by some seconds."""

    def __init__(self, reactor: Any, port: int) -> None:
        self._reactor, self._port, self.later = reactor, port, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def seconds(self) -> float:
        return float(self._reactor.seconds()) + self.later

    def connectTCP(self, host: str, port: int, *args: Any, **more: Any) -> Any:
        assert port == 443
        return self._reactor.connectTCP(host, self._port, *args, **more)


@contextmanager
def serving(folder: Path, authority: Authority, host: str) -> Iterator[Web]:
    """A running server for a host with a valid certificate, one of another name, an expired one, and one of an unknown authority."""
    web = Web(
        {
            "good": authority.server(folder, host),
            "of another name": authority.server(folder, "www.example.com"),
            "expired": authority.server(folder, host, days=-1),
            "of an unknown authority": Authority().server(folder, host),
        }
    )
    web.start()
    try:
        yield web
    finally:
        web.stop()
