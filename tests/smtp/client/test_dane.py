"""DANE: usable TLSA records, and the certificates that match them (RFC 7672 §3.1)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mailsvc.net.dns import Tlsa
from mailsvc.smtp.client.dane import fault, usable

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def certificate(
    name: str, issuer: Any = None, *, ca: bool = False, until: datetime = NOW + YEAR, names: Any = None, key: Any = None, pss: bool = False
) -> tuple[x509.Certificate, Any]:
    """`names`: DNS names, if not only `name`."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    created = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - YEAR)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
    )
    dns = [x509.DNSName(each) for each in ([name] if names is None else names)]
    if dns:
        created = created.add_extension(x509.SubjectAlternativeName(dns), critical=False)
    signer = key if issuer is None else issuer[1]
    digest = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    options = {"rsa_padding": padding.PSS(padding.MGF1(hashes.SHA256()), 32)} if pss else {}
    return created.sign(signer, digest, **options), key


ROOT = certificate("Root CA", ca=True)
MIDDLE = certificate("Middle CA", ROOT, ca=True)
LEAF = certificate("mx.example.com", MIDDLE)
CHAIN = [LEAF[0], MIDDLE[0], ROOT[0]]
OLD = certificate("mx.example.com", MIDDLE, until=NOW - timedelta(days=1))
FAKE = certificate("mx.example.com", certificate("Middle CA", ca=True))


def spki(created: tuple[x509.Certificate, Any]) -> bytes:
    return created[0].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def der(created: tuple[x509.Certificate, Any]) -> bytes:
    return created[0].public_bytes(Encoding.DER)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("record", "chain", "good"),
    [
        (Tlsa(3, 1, 1, sha256(spki(LEAF))), CHAIN, True),
        (Tlsa(3, 0, 1, sha256(der(LEAF))), CHAIN, True),
        (Tlsa(3, 1, 2, hashlib.sha512(spki(LEAF)).digest()), CHAIN, True),
        (Tlsa(3, 1, 0, spki(LEAF)), CHAIN, True),
        (Tlsa(3, 1, 1, sha256(spki(OLD))), [OLD[0]], True),  # neither dates nor names matter
        (Tlsa(3, 1, 1, sha256(spki(MIDDLE))), CHAIN, False),  # the server's own certificate has to match
        (Tlsa(3, 1, 1, sha256(spki(LEAF))), [], False),
        (Tlsa(2, 0, 1, sha256(der(ROOT))), CHAIN, True),
        (Tlsa(2, 1, 1, sha256(spki(MIDDLE))), CHAIN, True),
        (Tlsa(2, 0, 0, der(ROOT)), CHAIN[:2], True),  # an anchor that the server need not send
        (Tlsa(2, 0, 1, sha256(der(ROOT))), CHAIN[:2], False),
        (Tlsa(2, 1, 0, spki(ROOT)), CHAIN[:2], True),
        (Tlsa(2, 1, 0, spki(MIDDLE)), CHAIN[:1], True),
        (Tlsa(2, 1, 0, spki(ROOT)), CHAIN[:1], False),
        (Tlsa(2, 1, 0, spki(FAKE)), CHAIN[:2], False),
        (Tlsa(2, 1, 0, spki(ROOT)), [OLD[0], MIDDLE[0]], False),
        (Tlsa(2, 1, 0, spki(ROOT)), [FAKE[0], MIDDLE[0]], False),
        (Tlsa(2, 1, 0, b"no key"), CHAIN[:2], False),
        (Tlsa(2, 0, 1, sha256(der(MIDDLE))), [OLD[0], MIDDLE[0]], False),
        (Tlsa(2, 0, 1, sha256(der(MIDDLE))), [FAKE[0], MIDDLE[0]], False),
        (Tlsa(2, 0, 1, sha256(der(LEAF))), CHAIN, True),
        (Tlsa(1, 1, 1, sha256(spki(LEAF))), CHAIN, False),  # needs a public authority: does not count
    ],
)
def test_certificates_and_records(record: Tlsa, chain: list[x509.Certificate], good: bool) -> None:
    found = fault([record], chain, ["mx.example.com"], NOW)
    assert (found is None) is good, found


def test_a_trust_anchor_also_requires_the_name() -> None:
    record = Tlsa(2, 0, 1, sha256(der(ROOT)))
    assert fault([record], CHAIN, ["other.example.com"], NOW) == "the certificate is not for other.example.com"
    assert fault([record], CHAIN, ["other.example.com", "mx.example.com"], NOW) is None


def test_a_certificate_with_an_extension_twice_is_refused() -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Mail")])
    names, key = x509.GeneralNames([x509.DNSName("mx.example.com")]), ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW - YEAR, NOW + YEAR)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), False).add_extension(x509.IssuerAlternativeName(names), False)
    encoded = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER).replace(b"\x55\x1d\x12", b"\x55\x1d\x11")
    shown = x509.load_der_x509_certificate(encoded)
    with pytest.raises(x509.DuplicateExtension):
        _ = shown.extensions
    assert fault([Tlsa(2, 0, 1, sha256(encoded))], [shown], ["mx.example.com"], NOW) == "the certificate is not for mx.example.com"


@pytest.mark.parametrize(
    ("key", "pss"),
    [
        (rsa.generate_private_key(65537, 2048), False),
        (rsa.generate_private_key(65537, 2048), True),
        (ed25519.Ed25519PrivateKey.generate(), False),
    ],
    ids=["RSA", "RSA-PSS", "Ed25519"],
)
def test_an_absent_anchor_can_have_any_kind_of_key(key: Any, pss: bool) -> None:
    anchor = certificate("Anchor", ca=True, key=key, pss=pss)
    leaf = certificate("mx.example.com", anchor, pss=pss)
    assert fault([Tlsa(2, 1, 0, spki(anchor))], [leaf[0]], ["mx.example.com"], NOW) is None
    assert fault([Tlsa(2, 1, 0, spki(ROOT))], [leaf[0]], ["mx.example.com"], NOW) is not None


@pytest.mark.parametrize(
    ("common", "names", "good"),
    [
        ("mx.example.com", [], True),
        ("MX.example.COM", [], True),
        ("*.example.com", [], True),
        ("*.mx.example.com", [], False),
        ("*.com", [], False),
        ("other.example.com", [], False),
        ("mx.example.com", ["other.example.com"], False),  # only counts without DNS names
    ],
)
def test_a_common_name_counts_if_there_are_no_dns_names(common: str, names: list[str], good: bool) -> None:
    leaf = certificate(common, MIDDLE, names=names)
    assert (fault([Tlsa(2, 1, 1, sha256(spki(MIDDLE)))], [leaf[0], MIDDLE[0]], ["mx.example.com"], NOW) is None) is good


def test_one_matching_record_is_enough() -> None:
    records = [Tlsa(3, 1, 1, b"\0" * 32), Tlsa(0, 0, 1, b"\0" * 32), Tlsa(3, 1, 1, sha256(spki(LEAF)))]
    assert fault(records, CHAIN, ["mx.example.com"], NOW) is None


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        (Tlsa(3, 1, 1, b"x" * 32), True),
        (Tlsa(2, 0, 2, b"x" * 64), True),
        (Tlsa(3, 1, 1, b"x" * 31), False),
        (Tlsa(3, 1, 3, b"x"), False),
        (Tlsa(3, 2, 1, b"x" * 32), False),
        (Tlsa(0, 0, 1, b"x" * 32), False),
        (Tlsa(3, 0, 0, b""), False),
    ],
)
def test_usable_records(record: Tlsa, counts: bool) -> None:
    assert usable(record) is counts
