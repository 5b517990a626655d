"""DANE for SMTP (RFC 7672): which TLSA records are usable, and whether a certificate matches one of them. Pure.

Looking up the records, and whether they are authentic (DNSSEC): delivery/connection/connect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from service_identity.cryptography import verify_certificate_hostname
from service_identity.exceptions import CertificateError, VerificationError

from mailsvc.net.dns import Tlsa

_TA, _EE = 2, 3
_CN = x509.NameOID.COMMON_NAME
_MATCH: dict[int, Callable[[bytes], bytes]] = {
    0: lambda data: data,
    1: lambda data: hashlib.sha256(data).digest(),
    2: lambda data: hashlib.sha512(data).digest(),
}
_LENGTH = {1: 32, 2: 64}
_UNREADABLE = (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError)  # reading a certificate's extensions


def usable(record: Tlsa) -> bool:
    """The usages that depend on public authorities are unusable for SMTP (7672 §3.1.3)."""
    if record.usage not in (_TA, _EE) or record.selector not in (0, 1) or record.matching not in _MATCH:
        return False
    return len(record.data) == _LENGTH.get(record.matching, len(record.data)) > 0


def fault(records: Sequence[Tlsa], chain: Sequence[x509.Certificate], names: Sequence[str], now: datetime) -> str | None:
    """Why a server's certificate chain, its own certificate first, matches none of the records; None: it matches."""
    if not chain:
        return "the server sent no certificate"
    reason = "no TLSA record matches the server's certificate"
    for record in records:
        if not usable(record):
            continue
        if record.usage == _EE:
            if _matches(record, chain[0]):  # 7672 §3.1.1: its names and dates are not checked
                return None
            continue
        anchored = _anchored(record, chain)
        if anchored is None:
            continue
        problem = _path_fault(anchored, names, now)
        if problem is None:
            return None
        reason = problem
    return reason


def _anchored(record: Tlsa, chain: Sequence[x509.Certificate]) -> list[x509.Certificate] | None:
    """The server's certificates up to the one that the record matches (7672 §3.1.2)."""
    for number, certificate in enumerate(chain):
        if _matches(record, certificate):
            return list(chain[: number + 1])
    if record.matching != 0:
        return None
    # 7671 §5.2: a record with the whole anchor suffices, even if the server does not send it.
    if record.selector == 0:
        try:
            return [*chain, x509.load_der_x509_certificate(record.data)]
        except ValueError:
            return None
    for number, certificate in enumerate(chain):
        if _signed_with(record.data, certificate):
            return list(chain[: number + 1])
    return None


def _signed_with(public_key: bytes, certificate: x509.Certificate) -> bool:
    signature, signed, parameters = certificate.signature, certificate.tbs_certificate_bytes, certificate.signature_algorithm_parameters
    try:
        key = load_der_public_key(public_key)
        if isinstance(key, rsa.RSAPublicKey) and isinstance(parameters, padding.PKCS1v15 | padding.PSS):
            assert certificate.signature_hash_algorithm is not None
            key.verify(signature, signed, parameters, certificate.signature_hash_algorithm)
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(parameters, ec.ECDSA):
            key.verify(signature, signed, parameters)
        elif isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) and parameters is None:
            key.verify(signature, signed)
        else:
            return False
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _path_fault(path: Sequence[x509.Certificate], names: Sequence[str], now: datetime) -> str | None:
    for number, certificate in enumerate(path):
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            return "a certificate in the server's chain is not valid at this time"
        if number and not _is_authority(certificate):
            return "a certificate in the server's chain is not allowed to sign others"
    for issued, issuer in pairwise(path):
        try:
            issued.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            return "the server's certificate does not chain to the one in the TLSA record"
    if not any(_is_named(path[0], name) for name in names):
        return f"the certificate is not for {names[0]}"
    return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except _UNREADABLE:
        return False


def _is_named(certificate: x509.Certificate, name: str) -> bool:
    if not _dns_names(certificate):
        return any(_matches_name(str(each.value).lower(), name.lower()) for each in certificate.subject.get_attributes_for_oid(_CN))
    try:
        verify_certificate_hostname(certificate, name)
    except (VerificationError, CertificateError):
        return False
    return True


def _dns_names(certificate: x509.Certificate) -> Sequence[str]:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except _UNREADABLE:
        return ()


def _matches_name(pattern: str, name: str) -> bool:
    """Compares a common name, which counts if there are no DNS names (7672 §3.2.3). A star is the whole first label."""
    return pattern == name or (pattern.startswith("*.") and pattern[2:] == name.partition(".")[2] != "")


def _matches(record: Tlsa, certificate: x509.Certificate) -> bool:
    data = (
        certificate.public_bytes(Encoding.DER)
        if record.selector == 0
        else certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    return _MATCH[record.matching](data) == record.data
