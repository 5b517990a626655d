"""TLS for outgoing connections: unverified for opportunistic use (RFC 7435), verified if a policy requires it.

Contexts are created once and shared. Connections differ in the host name and in the check after the handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509StoreContext, X509StoreContextError
from service_identity.exceptions import CertificateError, VerificationError
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from zope.interface import implementer

from mailsvc.net.address_guard import is_address
from mailsvc.net.dns import Tlsa
from mailsvc.smtp.client import dane

# OpenSSL's error numbers (X509_V_ERR_*), explained.
_FAULTS = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is self-signed",
    19: "the certificate chain ends in an unknown root",
    20: "the certificate's issuer is unknown",
    21: "the certificate's issuer is unknown",
}


class Untrusted(Exception):
    """The handshake succeeded, but the certificate is not acceptable. The text says why."""


@implementer(IOpenSSLClientConnectionCreator)
class ClientTls:
    """The TLS of one connection: its context, the name to request (SNI), and the check after the handshake.

    `check` raises Untrusted. It is called before anything is written over TLS.
    """

    def __init__(
        self, context: SSL.Context, host: str, check: Callable[[SSL.Connection], None] | None = None, roots: str | None = None
    ) -> None:
        self._context = context
        self._host = host
        self._check = check
        self._roots = roots
        self.fault: str | None = None  # why OpenSSL refused the certificate

    def clientConnectionForTLS(self, protocol: object) -> SSL.Connection:
        connection = SSL.Connection(self._context, None)
        if self._host and not is_address(self._host):  # RFC 6066 §3: no IP addresses
            connection.set_tlsext_host_name(self._host.rstrip(".").encode("ascii"))
        if self._context.get_verify_mode() != SSL.VERIFY_NONE:
            connection.set_verify(SSL.VERIFY_PEER, self._remember)
        return connection

    def check(self, connection: SSL.Connection) -> None:
        if self._check is not None:
            self._check(connection)

    def would_refuse(self, connection: SSL.Connection) -> str | None:
        """Why the certificate of an open connection would be refused if it had to be trusted; None: it would not."""
        certificate = connection.get_peer_certificate()
        store = _context(verify=True, roots=self._roots).get_cert_store()
        if certificate is None or store is None:
            return "the server sent no certificate"
        try:
            X509StoreContext(store, certificate, connection.get_peer_cert_chain()).verify_certificate()
            _check_name(connection, self._host.rstrip("."))
        except X509StoreContextError as error:
            return _fault(error.errors[0])
        except Untrusted as fault:
            return str(fault)
        return None

    def _remember(self, _connection: SSL.Connection, _certificate: object, error: int, _depth: int, ok: int) -> bool:
        if not ok and self.fault is None:
            self.fault = _fault(error)
        return bool(ok)


def _fault(error: int) -> str:
    return _FAULTS.get(error, f"the certificate is not trusted (OpenSSL error {error})")


def unverified(host: str, roots: str | None = None) -> ClientTls:
    """Accepts any certificate: protects against passive listeners only. `roots`: what `would_refuse` trusts."""
    return ClientTls(_context(verify=False), host, roots=roots)


def verified(host: str, roots: str | None = None) -> ClientTls:
    """Requires a trusted certificate for `host`. `roots` is a PEM file to trust instead of the system's store."""
    return ClientTls(_context(verify=True, roots=roots), host, lambda connection: _check_name(connection, host.rstrip(".")))


def by_dane(records: Sequence[Tlsa], names: Sequence[str]) -> ClientTls:
    """Requires a certificate that matches a TLSA record; public authorities do not matter (7672 §3.1).

    `names`: what the certificate may be for. The first one is where the records are; the server is asked for its certificate (7672 §8.1).
    """

    def check(connection: SSL.Connection) -> None:
        chain = [certificate.to_cryptography() for certificate in connection.get_peer_cert_chain() or ()]
        fault = dane.fault(records, chain, names, datetime.now(UTC))
        if fault is not None:
            raise Untrusted(fault)

    return ClientTls(_context(verify=False), names[0], check)


def describe(connection: SSL.Connection) -> str:
    """Version and cipher, as `TLSv1.3 TLS_AES_256_GCM_SHA384`."""
    return f"{connection.get_protocol_version_name()} {connection.get_cipher_name()}"


def explain(error: BaseException) -> str:
    """Why a connection ended; OpenSSL's reasons without its function names."""
    if isinstance(error, SSL.Error) and error.args and isinstance(error.args[0], list):
        return "; ".join(str(entry[-1]) for entry in error.args[0] if entry) or "TLS failed"
    if isinstance(error, ConnectionDone):
        return "the server closed the connection"
    if isinstance(error, ConnectionLost):
        return ": ".join(["the connection was lost", *(str(detail) for detail in error.args)])
    return str(error).rstrip(".") or type(error).__name__


@cache
def _context(*, verify: bool, roots: str | None = None) -> SSL.Context:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)  # RFC 8996
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # idle connections keep no buffers
    if not verify:
        # RFC 7435 §3: a weak key is better than clear text, which would follow if it were refused.
        context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
        return context
    context.set_verify(SSL.VERIFY_PEER, lambda _connection, _certificate, _error, _depth, ok: bool(ok))
    if roots is None:
        context.set_default_verify_paths()
    else:
        context.load_verify_locations(roots)
    return context


def _check_name(connection: SSL.Connection, host: str) -> None:
    try:
        if is_address(host):
            verify_ip_address(connection, host)
        else:
            verify_hostname(connection, host)
    except (VerificationError, CertificateError, x509.DuplicateExtension, ValueError) as error:
        raise Untrusted(f"the certificate is not for {host}") from error
