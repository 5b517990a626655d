"""Signatures on vector lanes are those that OpenSSL makes."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from mailsvc.mail.authentication import dkim, rsa_batch
from mailsvc.mail.authentication.rsa_batch import LANES, BatchKey

KEYS = [rsa.generate_private_key(65537, bits) for bits in (1024, 2048, 2048, 3072, 4096)]
needs_lanes = pytest.mark.skipif(not rsa_batch.available, reason="needs AVX-512 IFMA and the extra avx512")


def one_by_one(private: rsa.RSAPrivateKey, data: bytes) -> bytes:
    return private.sign(data, padding.PKCS1v15(), hashes.SHA256())


def request(private: rsa.RSAPrivateKey, data: bytes) -> tuple[BatchKey, bytes]:
    key = BatchKey.of(private)
    assert key is not None
    return key, hashlib.sha256(data).digest()


@needs_lanes
@pytest.mark.parametrize("count", [1, 3, LANES, LANES + 1, 2 * LANES])
def test_signatures_are_those_of_openssl(count: int) -> None:
    texts = [b"mail %d" % number for number in range(count)]
    requests = [(KEYS[number % len(KEYS)], text) for number, text in enumerate(texts)]
    assert rsa_batch.sign([request(*each) for each in requests]) == [one_by_one(*each) for each in requests]


@needs_lanes
def test_a_wrong_signature_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the processor had made a mistake in one lane."""
    library = rsa_batch.LIBRARY

    def faulty(messages: object, signed: list[int], *rest: object) -> int:
        status = library.mbx_rsa_private_crt_mb8(messages, signed, *rest)
        (rsa_batch.c_char * 256).from_address(signed[1])[7] = b"\x00"
        return int(status)

    monkeypatch.setattr(rsa_batch, "LIBRARY", SimpleNamespace(**(vars(library) | {"mbx_rsa_private_crt_mb8": faulty})))
    texts = [b"a", b"b", b"c"]
    expected = [one_by_one(KEYS[1], text) for text in texts]
    assert rsa_batch.sign([request(KEYS[1], text) for text in texts]) == [expected[0], None, expected[2]]


@needs_lanes
def test_dkim_replaces_a_signature_that_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsa_batch, "sign", lambda requests: [None] * len(requests))
    key = dkim.SigningKey("rsa", KEYS[1], BatchKey.of(KEYS[1]))
    message = b"From: a@b.example\r\n\r\nHi\r\n"
    alone = dkim.sign(message, "b.example", [("s", key)], 1)
    assert dkim.complete([dkim.prepare(message, "b.example", [("s", key)], 1)] * 4) == [alone] * 4


def test_other_keys_are_left_to_openssl() -> None:
    assert BatchKey.of(rsa.generate_private_key(65537, 1536)) is None
    assert BatchKey.of(rsa.generate_private_key(3, 2048)) is None


def test_without_the_library_everything_is_left_to_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsa_batch, "LIBRARY", None)
    assert BatchKey.of(KEYS[1]) is None
