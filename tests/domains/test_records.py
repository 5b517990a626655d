"""What the owner of a domain publishes, and the keys for it."""

from __future__ import annotations

from base64 import b64decode
from datetime import date

import dkim
import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from mailsvc.domains.keypair import new_pair
from mailsvc.domains.records import Record, in_zone_file, to_publish

TODAY = date(2026, 11, 21)


def test_a_domain_publishes_spf_dkim_and_dmarc():
    keys = [new_pair("rsa", TODAY), new_pair("ed25519", TODAY)]
    records = to_publish("example.com", "send", "out.example.net", keys)
    assert [(record.purpose, record.type, record.name) for record in records] == [
        ("SPF", "MX", "send.example.com"),
        ("SPF", "TXT", "send.example.com"),
        ("DKIM", "TXT", f"{keys[0].selector}._domainkey.example.com"),
        ("DKIM", "TXT", f"{keys[1].selector}._domainkey.example.com"),
        ("DMARC", "TXT", "_dmarc.example.com"),
    ]
    assert records[1].value == "v=spf1 a:out.example.net ~all"


@pytest.mark.parametrize("algorithm", ["rsa", "ed25519"])
def test_the_public_half_belongs_to_the_private_half(algorithm):
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
    record = next(record for record in to_publish("example.com", "send", "mx", [pair]) if record.purpose == "DKIM")
    _, size, kind, _ = dkim.evaluate_pk(record.name.encode(), record.value.encode())
    assert (kind, size) == ((b"rsa", 2048) if algorithm == "rsa" else (b"ed25519", 256))


def test_selectors_do_not_come_back():
    assert len({new_pair("ed25519", TODAY).selector for _ in range(20)}) > 1
    assert new_pair("ed25519", TODAY).selector.startswith("ms202611e")


def test_a_private_key_is_not_shown():
    pair = new_pair("ed25519", TODAY)
    assert "der" not in repr(pair)


def test_a_zone_file_splits_long_texts():
    value = "v=DKIM1; p=" + "A" * 400
    line = in_zone_file(Record("DKIM", "TXT", "s._domainkey.example.com", value))
    assert line == f's._domainkey.example.com. TXT "{value[:255]}" "{value[255:]}"'


def test_a_zone_file_has_absolute_hosts():
    assert in_zone_file(Record("SPF", "MX", "send.example.com", "out.example.net", 10)) == "send.example.com. MX 10 out.example.net."
