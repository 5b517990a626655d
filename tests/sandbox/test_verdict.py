"""DKIM verdicts of the sandbox, on the service's own signatures."""

from __future__ import annotations

import time
from collections.abc import Callable

import dkim as reference
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key
from twisted.internet.defer import Deferred

from mailsvc.mail.authentication import dkim
from mailsvc.sandbox.verdict import MAX_SIGNATURES, TOO_LARGE, verdicts
from mailsvc.store.mail.sandbox import Verdict

MESSAGE = b"From: a@example.com\r\nTo: b@example.org\r\nSubject: hello\r\nMessage-ID: <1@example.com>\r\n\r\nbody\r\n"
PAIRS = {"s1": dkim.generate("rsa"), "s2": dkim.generate("ed25519")}
ALGORITHMS: dict[str, dkim.Algorithm] = {"s1": "rsa", "s2": "ed25519"}
KEYS = [(selector, dkim.load_key(ALGORITHMS[selector], pair[0])) for selector, pair in PAIRS.items()]
SIGNED = dkim.sign(MESSAGE, "example.com", KEYS, int(time.time())) + MESSAGE


def check(message: bytes, *selectors: str) -> tuple[Verdict, ...]:
    async def published(domain: str, selector: str) -> str | None:
        if domain != "example.com" or selector not in selectors:
            return None
        return dkim.dns_record(ALGORITHMS[selector], PAIRS[selector][1])

    async def offload(work: Callable[[], tuple[Verdict, ...]]) -> tuple[Verdict, ...]:
        return work()

    results: list[tuple[Verdict, ...]] = []
    Deferred.fromCoroutine(verdicts(message, published, offload)).addCallback(results.append)
    return results[0]


def test_both_signatures_pass() -> None:
    found = check(SIGNED, "s1", "s2")
    assert {(verdict.selector, verdict.algorithm, verdict.result) for verdict in found} == {
        ("s1", "rsa-sha256", "pass"),
        ("s2", "ed25519-sha256", "pass"),
    }


@pytest.mark.parametrize(("old", "new"), [(b"body", b"bodies"), (b"hello", b"hullo")])
def test_a_changed_message_fails(old: bytes, new: bytes) -> None:
    assert [verdict.result for verdict in check(SIGNED.replace(old, new), "s1", "s2")] in (["fail", "fail"], ["invalid", "invalid"])


@pytest.mark.parametrize("canonicalization", [b"simple/simple", b"simple/relaxed", b"relaxed/simple", b"relaxed/relaxed"])
@pytest.mark.parametrize("length", [False, True])
def test_other_signatures_with_every_canonicalization(canonicalization: bytes, length: bool) -> None:
    private = load_der_private_key(PAIRS["s1"][0], None).private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    message = MESSAGE + b"more  text \r\n\r\n\r\n"
    canonical = canonicalization.split(b"/")
    field = reference.sign(message, b"s1", b"example.com", private, canonicalize=tuple(canonical), length=length)
    assert [verdict.result for verdict in check(field + message, "s1")] == ["pass"]
    assert [verdict.result for verdict in check(field + message.replace(b"more", b"less"), "s1")] == ["fail"]
    assert [verdict.result for verdict in check(field + message + b"appended\r\n", "s1")] == ["pass" if length else "fail"]


def test_regular_expressions_run_over_the_header_only(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, sizes = reference.rfc822_parse, []

    def parsed(message: bytes) -> object:
        sizes.append(len(message))
        return parse(message)

    monkeypatch.setattr(reference, "rfc822_parse", parsed)
    message = MESSAGE + b"line\r\n" * 100_000
    signed = dkim.sign(message, "example.com", KEYS, int(time.time())) + message
    assert [verdict.result for verdict in check(signed, "s1", "s2")] == ["pass", "pass"]
    assert sizes and max(sizes) < 10_000


@pytest.mark.parametrize("header", [b"X: " + b"a" * 200_000 + b"\r\n", b"X: a\r\n" * 2000])
def test_a_huge_header_is_not_verified(header: bytes) -> None:
    [verdict] = check(header + SIGNED, "s1")
    assert (verdict.result, verdict.reason) == ("invalid", TOO_LARGE)


def test_an_unpublished_key_has_its_own_verdict() -> None:
    found = {verdict.selector: verdict for verdict in check(SIGNED, "s1")}
    assert found["s1"].result == "pass"
    assert found["s2"].result == "nokey"
    assert found["s2"].reason == "No key is published at s2._domainkey.example.com."


@pytest.mark.parametrize(
    "field",
    [b"DKIM-Signature: \r\n", b"DKIM-Signature: ;;=;\r\n", b"DKIM-Signature: d=example.com; s=s1\r\n", b"dkim-signature: d=\xff; s=s1\r\n"],
)
def test_a_malformed_signature_is_invalid(field: bytes) -> None:
    assert [verdict.result == "pass" for verdict in check(field + MESSAGE, "s1")] == [False]


@pytest.mark.parametrize("message", [b"", b"\r\n", b"no headers at all\r\n", MESSAGE])
def test_unsigned(message: bytes) -> None:
    assert check(message) == ()


def test_the_number_of_signatures_is_limited() -> None:
    assert len(check(b"DKIM-Signature: a=b\r\n" * 50 + MESSAGE)) == MAX_SIGNATURES
