"""DANE for SMTP (RFC 7672): which TLSA records count, and whether a certificate is one of those that they name. Pure.

Whether the records may be believed (DNSSEC), and asking for them: delivery/connection/connect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from service_identity.cryptography import verify_certificate_hostname
from service_identity.exceptions import CertificateError, VerificationError

from mailsvc.net.dns import Tlsa

_TA, _EE = 2, 3
_MATCH: dict[int, Callable[[bytes], bytes]] = {
    0: lambda octets: octets,
    1: lambda octets: hashlib.sha256(octets).digest(),
    2: lambda octets: hashlib.sha512(octets).digest(),
}
_LENGTH = {1: 32, 2: 64}


def usable(record: Tlsa) -> bool:
    """The usages that need a public authority do not count for SMTP (7672 §3.1.3)."""
    if record.usage not in (_TA, _EE) or record.selector not in (0, 1) or record.matching not in _MATCH:
        return False
    return len(record.data) == _LENGTH.get(record.matching, len(record.data)) > 0


def fault(records: Sequence[Tlsa], chain: Sequence[x509.Certificate], names: Sequence[str], now: datetime) -> str | None:
    """Why a server's certificates, its own first, are not those that the records name; None: they are."""
    if not chain:
        return "the server showed no certificate"
    why = "no TLSA record is for the server's certificate"
    for record in records:
        if not usable(record):
            continue
        if record.usage == _EE:
            if _matches(record, chain[0]):  # 7672 §3.1.1: neither its names nor its dates matter
                return None
            continue
        anchored = _anchored(record, chain)
        if anchored is None:
            continue
        problem = _path_fault(anchored, names, now)
        if problem is None:
            return None
        why = problem
    return why


def _anchored(record: Tlsa, chain: Sequence[x509.Certificate]) -> list[x509.Certificate] | None:
    """The server's certificates up to the one that the record names (7672 §3.1.2)."""
    for number, certificate in enumerate(chain):
        if _matches(record, certificate):
            return list(chain[: number + 1])
    if record.selector == 0 and record.matching == 0:
        try:
            return [*chain, x509.load_der_x509_certificate(record.data)]
        except ValueError:
            return None
    return None


def _path_fault(path: Sequence[x509.Certificate], names: Sequence[str], now: datetime) -> str | None:
    for number, certificate in enumerate(path):
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            return "a certificate of the server's chain is not valid at this time"
        if number and not _is_authority(certificate):
            return "a certificate of the server's chain may not sign others"
    for issued, issuer in pairwise(path):
        try:
            issued.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            return "the server's certificate does not lead to the one that the TLSA record names"
    if not any(_is_named(path[0], name) for name in names):
        return f"the certificate does not name {names[0]}"
    return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (x509.ExtensionNotFound, ValueError):
        return False


def _is_named(certificate: x509.Certificate, name: str) -> bool:
    try:
        verify_certificate_hostname(certificate, name)
    except (VerificationError, CertificateError):
        return False
    return True


def _matches(record: Tlsa, certificate: x509.Certificate) -> bool:
    octets = (
        certificate.public_bytes(Encoding.DER)
        if record.selector == 0
        else certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    return _MATCH[record.matching](octets) == record.data
