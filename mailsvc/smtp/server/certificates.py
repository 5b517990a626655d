"""The server's certificate, a PEM pair that may be renewed or a self-signed one created at the first start, and its TLS settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions, TLSVersion
from twisted.logger import Logger
from zope.interface import implementer

log = Logger()

CERTIFICATE, KEY = "certificate.pem", "key.pem"
CERTBOT = ("fullchain.pem", "privkey.pem")  # in a folder of /etc/letsencrypt/live
_CIPHERS = AcceptableCiphers.fromOpenSSLCipherString("ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20")
_CHECK_EVERY = 10.0  # seconds between two checks of the files
_LIFETIME = timedelta(days=3650)


def server_context(certificate: Path, key: Path) -> CertificateOptions:
    """TLS 1.2 and newer (8997), with forward secrecy and AEAD; no client certificates (8314 §4.2).

    `certificate` may contain the chain, the server's certificate first. Raises OSError, ValueError or SSL.Error.
    """
    chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (TypeError, UnsupportedAlgorithm):
        raise ValueError("the key is encrypted with a password, or of an unknown kind") from None
    make: Any = CertificateOptions  # accepts cryptography's classes, but its annotations do not
    options: CertificateOptions = make(
        private, chain[0], extraCertChain=chain[1:], raiseMinimumTo=TLSVersion.TLSv1_2, acceptableCiphers=_CIPHERS
    )
    return options


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """TLS with a pair of files that may be renewed while the daemon runs: new connections use the renewed pair.

    A renewed pair that cannot be read, or is incomplete, is ignored. The first one must be valid.
    """

    def __init__(self, certificate: Path, key: Path, seconds: Callable[[], float]) -> None:
        self._certificate, self._key, self._seconds = certificate, key, seconds
        self._checked_at, self._loaded = seconds(), self._state()
        self._context = self._load()

    def serverConnectionForTLS(self, protocol: object) -> SSL.Connection:
        self._look()
        return SSL.Connection(self._context, None)

    @property
    def expires_at(self) -> datetime:
        """When the certificate in use expires; a renewed one is used from now on."""
        self._look()
        return self._expires_at

    def _load(self) -> SSL.Context:
        options: Any = server_context(self._certificate, self._key)
        context: SSL.Context = options.getContext()
        self._expires_at: datetime = options.certificate.not_valid_after_utc
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # idle connections keep no buffers
        return context

    def _look(self) -> None:
        if self._seconds() >= self._checked_at + _CHECK_EVERY:
            self._checked_at = self._seconds()
            self._renew()

    def _renew(self) -> None:
        try:
            state = self._state()
            if state == self._loaded:
                return
            self._context = self._load()
            self._loaded = state
            log.info("certificate {file} reloaded", file=str(self._certificate))
        except (OSError, ValueError, SSL.Error) as error:
            log.error("the renewed certificate {file} cannot be used: {reason}", file=str(self._certificate), reason=str(error))

    def _state(self) -> tuple[object, ...]:
        """Differs after a file was replaced, also behind a symbolic link."""
        stats = [path.stat() for path in (self._certificate, self._key)]
        return tuple((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    """The pair in `folder`, created if it does not exist."""
    certificate, key = folder / CERTIFICATE, folder / KEY
    if not (certificate.exists() and key.exists()):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        private = ec.generate_private_key(ec.SECP256R1())
        _write(key, private.private_bytes(*_PEM, serialization.NoEncryption()))
        _write(certificate, _issue(private, host).public_bytes(serialization.Encoding.PEM))
    return certificate, key


_PEM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


def _issue(private: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]), datetime.now(UTC)
    start, end = now - timedelta(hours=1), now + _LIFETIME
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number(), start, end)
    names = dict.fromkeys((host, "localhost"))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
    return builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).sign(private, hashes.SHA256())


def _write(path: Path, data: bytes) -> None:
    """Write the file as a whole, readable by its owner only."""
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    partial.replace(path)
