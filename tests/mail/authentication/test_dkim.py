"""DKIM: canonicalization and signatures, compared with a second implementation."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import pairwise

import dkim as reference
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from dkim.canonicalization import Relaxed, Simple
from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.mail.authentication import dkim
from mailsvc.mail.authentication.dkim import DkimError, SigningKey

BODIES = st.binary(max_size=400) | st.lists(
    st.sampled_from([b" ", b"\t", b"\r\n", b"\r", b"\n", b"a", b"  ", b" \r\n", b"\r\n\r\n", b"\xff"]), max_size=60
).map(b"".join)

RSA_DER, RSA_PUBLIC = dkim.generate("rsa")
ED_DER, ED_PUBLIC = dkim.generate("ed25519")
RSA = dkim.load_key("rsa", RSA_DER)
ED = dkim.load_key("ed25519", ED_DER)
RECORDS = {
    b"r._domainkey.acme.example.": dkim.dns_record("rsa", RSA_PUBLIC),
    b"e._domainkey.acme.example.": dkim.dns_record("ed25519", ED_PUBLIC),
}
NOW = 1_790_000_000
LONG = 2_000_000_000  # so that the verifier's clock finds no signature expired

MESSAGE = (
    b"From: Acme <news@acme.example>\r\nTo: jane@b.example\r\nSubject:  folded\r\n\tonce  and\r\n  twice \r\n"
    b"Date: Fri, 20 Nov 2026 10:05:09 +0000\r\nMessage-ID: <1@acme.example>\r\nX-Other: 1\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: text/plain\r\n\r\nHi  there\t \r\n\r\nBye\r\n\r\n\r\n"
)


def verify(message: bytes, index: int = 0, records: dict[bytes, str] = RECORDS) -> bool:
    try:
        return bool(reference.DKIM(message).verify(idx=index, dnsfunc=lambda name, timeout=5: records[name].encode()))
    except reference.ValidationError:
        return False


# --- canonical forms -------------------------------------------------------------------------------------------------


def relaxed_body(message: bytes, start: int = 0) -> bytes:
    return b"".join(dkim.canonical_body_of(message, start, relaxed=True))


@given(BODIES)
@example(b"")
@example(b"\r\n")
@example(b" \r\n\t\r\n")
@example(b"no line end")
@example(b"a\n\r\n\r\n")
def test_bodies_are_canonicalized(body: bytes) -> None:
    expected = Relaxed.canonicalize_body(body)
    assert relaxed_body(body) == expected
    assert relaxed_body(b"x" * 7 + body, 7) == expected


@given(
    st.lists(st.sampled_from([b"a \t b\r\n", b"\r\n" * 3, b"x" * 100_000 + b"\r\n", b"y" * 300_000, b" " * 9]), max_size=12).map(b"".join)
)
@example(b"a" + b" \r\n" * 400_000 + b"b\r\n")
@example(b"\r\n" * 400_000)
def test_large_bodies_are_canonicalized_in_slices(body: bytes) -> None:
    assert relaxed_body(body) == Relaxed.canonicalize_body(body)


@given(BODIES, st.lists(st.integers(1, 9), min_size=1, max_size=9), st.booleans())
@example(b"a \r\n\r\n b\r\n", [1], True)
@example(b"a\r\n\r\n", [1], False)
def test_slices_can_begin_anywhere(body: bytes, cuts: list[int], relaxed: bool) -> None:
    pieces, at = [], 0
    for size in cuts * len(body):
        pieces.append(body[at : at + size])
        at += size
    expected = (Relaxed if relaxed else Simple).canonicalize_body(body)
    assert b"".join(dkim.canonical_body(pieces, relaxed=relaxed)) == expected


@pytest.mark.parametrize("body", [b"x" * 2_000_000, b" " * 2_000_000, b"\r\n" * 1_000_000 + b"x", b"a  " * 700_000])
@pytest.mark.parametrize("relaxed", [True, False])
def test_slices_stay_small_for_long_lines(body: bytes, relaxed: bool) -> None:
    assert max(len(piece) for piece in dkim.canonical_body_of(body, 0, relaxed=relaxed)) <= 300_000


HEAD = b"From: a@example.org\r\nSubject: x\r\n"


@given(BODIES, st.lists(st.integers(0, 60), max_size=6), st.booleans())
@example(b"a\r\n", [len(HEAD)], True)  # our own lines in one piece, what came in after them in another
@example(b"a\r\n", [len(HEAD) + 1, len(HEAD) + 2, len(HEAD) + 4], True)
@example(b"", [], False)
def test_a_message_in_slices_gets_the_same_signature(body: bytes, cuts: list[int], bodied: bool) -> None:
    message = HEAD + (b"\r\n" + body if bodied else b"")
    ends = sorted({min(cut, len(message)) for cut in cuts} | {0, len(message)})
    pieces = [message[start:end] for start, end in pairwise(ends)]
    assert b"".join(pieces) == message
    key = [("s", ED)]
    assert dkim.sign(iter(pieces), "example.org", key, 1) == dkim.sign(message, "example.org", key, 1)


@given(st.lists(st.sampled_from([b" ", b"\t", b"\r\n ", b"\r\n\t", b"a", b"B:", b"\xc3\xa9"]), max_size=30).map(b"".join))
def test_headers_are_canonicalized(value: bytes) -> None:
    [(name, expected)] = Relaxed.canonicalize_headers([(b"X-Name", value)])
    assert dkim.relaxed_header(b"X-Name", value) == name + b":" + expected


# --- signatures ------------------------------------------------------------------------------------------------------

TEXTS = st.lists(st.sampled_from([b" ", b"\t", b"\r\n", b"a", b".", b"  ", b"\xc3\xa9", b"w" * 99]), max_size=40).map(b"".join)


@given(
    TEXTS, st.lists(st.sampled_from([b"Subject: x", b"To: a@b.example", b"List-Id:\r\n  y", b"X-A: b", b"from: c@d.example"]), max_size=6)
)
@example(b"", [])
def test_signatures_verify(body: bytes, fields: list[bytes]) -> None:
    message = b"\r\n".join([b"From: news@acme.example", *fields, b"", body])
    signed = dkim.sign(message, "acme.example", [("r", RSA), ("e", ED)], NOW, LONG) + message
    assert verify(signed, 0)
    assert verify(signed, 1)
    assert not verify(signed + b"more\r\n", 0)


@pytest.mark.parametrize("message", [MESSAGE, MESSAGE.partition(b"\r\n\r\n")[0] + b"\r\n", MESSAGE.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"])
def test_messages_with_and_without_a_body_are_signed(message: bytes) -> None:
    assert verify(dkim.sign(message, "acme.example", [("e", ED)], NOW, LONG) + message)


def test_the_signature_field_has_all_tags() -> None:
    block = dkim.sign(MESSAGE, "acme.example", [("e", ED), ("r", RSA)], NOW)
    assert block.endswith(b"\r\n") and not re.search(rb"\r(?!\n)|(?<!\r)\n", block)
    assert all(len(line) <= 78 for line in block.split(b"\r\n"))
    first, second = re.split(rb"\r\n(?=DKIM)", block)
    tags = [dict(re.findall(r"(\w+)=([^;]*)", re.sub(r"\s", "", field.decode()))) for field in (first, second)]
    assert [tag["a"] for tag in tags] == ["rsa-sha256", "ed25519-sha256"]  # RSA on top
    assert [tag["s"] for tag in tags] == ["r", "e"]
    for tag in tags:
        assert (tag["v"], tag["c"], tag["d"]) == ("1", "relaxed/relaxed", "acme.example")
        assert (tag["t"], tag["x"]) == (str(NOW), str(NOW + 14 * 86400))
        assert not tag.keys() & {"l", "i"}
    assert tags[0]["bh"] == tags[1]["bh"]
    assert sorted(tags[0]["h"].split(":")) == sorted(
        ["from", "to", "subject", "date", "message-id", "mime-version", "content-type"] * 2
        + ["cc", "reply-to", "list-unsubscribe", "list-unsubscribe-post", "content-transfer-encoding", "sender"]
    )


def test_the_signature_field_is_folded() -> None:
    """5322 §2.1.1: at most 78 characters, however long selector and domain are (and as far as they can be folded)."""
    domain, rsa, ed = "notifications.some-customer.acme.example", "m20261121-long-selector", "m20261121-long-selector-ed"
    block = dkim.sign(MESSAGE, domain, [(rsa, RSA), (ed, ED)], NOW, LONG)
    assert max(map(len, block.split(b"\r\n"))) <= 78
    published = zip((rsa, ed), RECORDS.values(), strict=True)
    records = {f"{selector}._domainkey.{domain}.".encode(): record for selector, record in published}
    assert verify(block + MESSAGE, 0, records) and verify(block + MESSAGE, 1, records)


@pytest.mark.parametrize(
    "added",
    [
        b"From: evil@x.example",
        b"Subject: evil",
        b"To: e@x.example",
        b"Reply-To: e@x.example",
        b"Cc: e@x.example",
        b"List-Unsubscribe: <https://x.example>",
        b"Content-Transfer-Encoding: base64",
        b"Sender: e@x.example",
    ],
)
@pytest.mark.parametrize("on_top", [True, False])
def test_an_added_field_breaks_the_signature(added: bytes, on_top: bool) -> None:
    signature = dkim.sign(MESSAGE, "acme.example", [("e", ED)], NOW, LONG)
    assert verify(signature + MESSAGE)
    changed = added + b"\r\n" + MESSAGE if on_top else MESSAGE.replace(b"\r\n\r\n", b"\r\n" + added + b"\r\n\r\n", 1)
    assert not verify(signature + changed)


def test_refolding_keeps_the_signature_valid() -> None:
    signature = dkim.sign(MESSAGE, "acme.example", [("r", RSA)], NOW, LONG)
    changed = MESSAGE.replace(b"folded\r\n\tonce  and", b"folded once\r\n and").replace(b"Hi  there\t ", b"Hi there")
    assert changed != MESSAGE
    assert verify(b"Received: by x\r\n" + signature.replace(b"Signature: v", b"Signature:\r\n  v") + changed)


@pytest.mark.parametrize("message", [b"To: a@b.example\r\n\r\nx", b"", b"\r\nx", b"From: a@b.example\r\nno field\r\n\r\nx"])
def test_invalid_headers_are_not_signed(message: bytes) -> None:
    with pytest.raises(DkimError):
        dkim.sign(message, "acme.example", [("e", ED)], NOW)


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_are_generated_and_loaded() -> None:
    assert (RSA.private.key_size, dkim.public_value(RSA), dkim.public_value(ED)) == (2048, RSA_PUBLIC, ED_PUBLIC)  # type: ignore[union-attr]
    assert len(ED_PUBLIC) == 44
    assert dkim.dns_record("rsa", "MIIB") == "v=DKIM1; k=rsa; p=MIIB"
    assert "private" not in repr(RSA).lower()


@pytest.mark.parametrize(
    ("algorithm", "der"),
    [("rsa", ED_DER), ("ed25519", RSA_DER), ("rsa", b""), ("rsa", b"garbage"), ("ed25519", ED_DER[:-1])],
    ids=["Ed25519 as RSA", "RSA as Ed25519", "empty", "garbage", "cut off"],  # the keys are new ones in each process
)
def test_invalid_keys_are_refused(algorithm: dkim.Algorithm, der: bytes) -> None:
    with pytest.raises(DkimError):
        dkim.load_key(algorithm, der)


# RFC 8463 appendix A: the key, the message and the signature that belongs to both.
RFC_KEY = SigningKey(
    "ed25519", ed25519.Ed25519PrivateKey.from_private_bytes(base64.b64decode("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="))
)
RFC_FIELD = (
    b" v=1; a=ed25519-sha256; c=relaxed/relaxed;\r\n d=football.example.com; i=@football.example.com;\r\n"
    b" q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r\n subject : date : message-id : from : subject : date;\r\n"
    b" bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r\n b="
)
RFC_SIGNATURE = b"/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11BusFa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw=="
RFC_FIELDS = {
    b"From": b" Joe SixPack <joe@football.example.com>",
    b"To": b" Suzie Q <suzie@shopping.example.net>",
    b"Subject": b" Is dinner ready?",
    b"Date": b" Fri, 11 Jul 2003 21:00:37 -0700 (PDT)",
    b"Message-ID": b" <20030712040037.46341.5F8J@football.example.com>",
}
RFC_BODY = b"Hi.\r\n\r\nWe lost the game.  Are you hungry yet?\r\n\r\nJoe.\r\n"


def test_the_example_of_rfc_8463() -> None:
    assert dkim.public_value(RFC_KEY) == "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    assert base64.b64encode(hashlib.sha256(relaxed_body(RFC_BODY)).digest()) == b"2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8="
    signed = b"".join(dkim.relaxed_header(name, value) for name, value in RFC_FIELDS.items())
    signed += dkim.relaxed_header(b"DKIM-Signature", RFC_FIELD)[:-2]
    assert base64.b64encode(RFC_KEY.sign(hashlib.sha256(signed).digest())) == RFC_SIGNATURE
    message = b"".join(name + b":" + value + b"\r\n" for name, value in RFC_FIELDS.items()) + b"\r\n" + RFC_BODY
    record = {b"brisbane._domainkey.football.example.com.": dkim.dns_record("ed25519", dkim.public_value(RFC_KEY))}
    assert verify(b"DKIM-Signature:" + RFC_FIELD + RFC_SIGNATURE + b"\r\n" + message, records=record)
    assert verify(dkim.sign(message, "football.example.com", [("brisbane", RFC_KEY)], NOW, LONG) + message, records=record)
