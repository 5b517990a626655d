"""What the owner of a domain publishes, and the keys for it."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import attrs
import dkim
import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from mailsvc.domains.keypair import new_pair
from mailsvc.domains.records import Publishing, Record, in_zone_file
from mailsvc.store.domains.values import DkimKey, Domain, KeyState

TODAY = date(2026, 11, 21)
NOW = datetime(2026, 11, 21, tzinfo=UTC)
PUBLISHING = Publishing({"r1": "out.example.net"})


def domain(**changes: Any) -> Domain:
    one = Domain(UUID(int=0xAB), UUID(int=2), "example.com", "r1", "not_started", False, "send", ("rsa", "ed25519"), "opportunistic", NOW)
    return attrs.evolve(one, **changes)


def key(selector: str, algorithm: Any = "rsa", state: KeyState = "signing") -> DkimKey:
    return DkimKey(UUID(int=hash(selector) % 1000), selector, algorithm, "cHVi", state, NOW, NOW)


def test_a_domain_publishes_dkim_and_spf() -> None:
    records = PUBLISHING.records(domain(), [key("r1"), key("e1", "ed25519"), key("r2", state="published"), key("r0", state="leaving")])
    assert [(record.purpose, record.type, record.name, record.required) for record in records] == [
        ("SPF", "MX", "send.example.com", True),
        ("SPF", "TXT", "send.example.com", True),
        ("DKIM", "TXT", "r1._domainkey.example.com", True),
        ("DKIM", "TXT", "e1._domainkey.example.com", True),
        ("DKIM", "TXT", "r2._domainkey.example.com", False),
    ]
    assert records[1].value == "v=spf1 a:out.example.net ~all"
    assert attrs.evolve(PUBLISHING, spf_includes={"r1": "spf.example.net"}).spf("r1") == "v=spf1 include:spf.example.net ~all"


def test_delegated_keys_are_cnames_to_names_that_the_operator_serves() -> None:
    publishing = attrs.evolve(PUBLISHING, dkim_zone="dkim.example.net")
    records = publishing.records(domain(delegated=True), [key("ms1r"), key("ms1e", "ed25519"), key("ms2r", state="published")])
    assert [(r.type, r.name, r.value, r.required, r.key is not None) for r in records[2:]] == [
        ("CNAME", "ms1r._domainkey.example.com", "ms1r.0000000000ab.dkim.example.net", True, True),
        ("CNAME", "ms2r._domainkey.example.com", "ms2r.0000000000ab.dkim.example.net", True, False),
        ("CNAME", "ms1e._domainkey.example.com", "ms1e.0000000000ab.dkim.example.net", True, True),
        ("CNAME", "ms2e._domainkey.example.com", "ms2e.0000000000ab.dkim.example.net", True, False),
    ]
    assert in_zone_file(records[2]) == "ms1r._domainkey.example.com. CNAME ms1r.0000000000ab.dkim.example.net."
    assert publishing.zone([(UUID(int=0xAB), key("ms1r")), (UUID(int=0xAB), key("ms2r", state="retired"))]) == [
        'ms1r.0000000000ab.dkim.example.net. TXT "v=DKIM1; k=rsa; p=cHVi"',
        'ms2r.0000000000ab.dkim.example.net. TXT "v=DKIM1; k=rsa; p="',
    ]


@pytest.mark.parametrize("algorithm", ["rsa", "ed25519"])
def test_the_public_key_belongs_to_the_private_key(algorithm):
    pair = new_pair(algorithm, TODAY)
    private = load_der_private_key(pair.der, None)
    published = b64decode(pair.public)
    if algorithm == "rsa":
        assert load_der_public_key(published) == private.public_key()
        assert private.key_size == 2048
    else:
        assert published == private.public_key().public_bytes_raw()


@pytest.mark.parametrize("algorithm", ["rsa", "ed25519"])
def test_a_verifier_reads_the_record(algorithm):
    pair = new_pair(algorithm, TODAY)
    created = DkimKey(UUID(int=1), pair.selector, pair.algorithm, pair.public, "signing", NOW, NOW)
    record = PUBLISHING.records(domain(), [created])[2]
    _, size, kind, _ = dkim.evaluate_pk(record.name.encode(), record.value.encode())
    assert (kind, size) == ((b"rsa", 2048) if algorithm == "rsa" else (b"ed25519", 256))


def test_selectors_are_not_reused():
    assert len({new_pair("ed25519", TODAY).selector for _ in range(20)}) > 1
    assert new_pair("ed25519", TODAY).selector.startswith("ms202611e")


def test_a_private_key_is_not_in_repr():
    pair = new_pair("ed25519", TODAY)
    assert "der" not in repr(pair)


def test_a_zone_file_splits_long_texts():
    value = "v=DKIM1; p=" + "A" * 400
    line = in_zone_file(Record("DKIM", "TXT", "s._domainkey.example.com", value))
    assert line == f's._domainkey.example.com. TXT "{value[:255]}" "{value[255:]}"'


def test_a_zone_file_has_absolute_hosts():
    assert in_zone_file(Record("SPF", "MX", "send.example.com", "out.example.net", 10)) == "send.example.com. MX 10 out.example.net."
