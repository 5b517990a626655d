"""Verifies the DKIM signatures of a received mail with the public keys that this service publishes, or would publish.

dkimpy verifies the signed header fields. The body may be large and is hashed here in pieces: dkimpy's regular expressions run over a
whole body at once and block every other thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import dkim
from dkim.util import InvalidTagValueList, parse_tag_value

from mailsvc.mail.authentication.dkim import canonical_body_of
from mailsvc.mail.header import HeaderError, split_fields
from mailsvc.runtime.offload import InThread
from mailsvc.store.mail.sandbox import Verdict

MAX_SIGNATURES = 10
MAX_HEADER = 128 * 1024  # bytes; a larger header is not verified
MAX_FIELDS = 1000  # a header with more fields is not verified
TOO_LARGE = f"Headers with more than {MAX_HEADER // 1024} KiB or {MAX_FIELDS} fields are not verified."
BODY_FAILS = "The body was changed: its hash differs from the signed one (bh)."

# (domain, selector) → the TXT record of `selector._domainkey.domain`, or None.
Published = Callable[[str, str], Awaitable[str | None]]


async def verdicts(message: bytes, published: Published, offload: InThread) -> tuple[Verdict, ...]:
    """A verdict for each signature, in the order of the header; none for an unsigned mail."""
    records: dict[bytes, bytes] = {}
    start = _body_start(message)
    if start is None:
        return (Verdict("", "", "", "invalid", TOO_LARGE),)
    try:
        fields = split_fields(message[:start].removesuffix(b"\r\n"))
    except HeaderError:
        return ()
    if len(fields) > MAX_FIELDS:
        return (Verdict("", "", "", "invalid", TOO_LARGE),)
    signatures = [_tags(raw) for _, name, raw in fields if name.lower() == b"dkim-signature"][:MAX_SIGNATURES]
    for tags in signatures:
        domain, selector = tags.get("d", ""), tags.get("s", "")
        record = await published(domain, selector) if domain and selector else None
        if record is not None:
            records[f"{selector}._domainkey.{domain}.".encode()] = record.encode("ascii")
    if not signatures:
        return ()
    return await offload(lambda: _verified(message, start, signatures, records))


def _body_start(message: bytes) -> int | None:
    """Where the body begins; None if the header is too large."""
    if message.startswith(b"\r\n"):
        return 2
    end = message.find(b"\r\n\r\n", 0, MAX_HEADER)
    if end >= 0:
        return end + 4
    return len(message) if len(message) <= MAX_HEADER else None


def _tags(value: bytes) -> dict[str, str]:
    try:
        tags: Mapping[bytes, bytes] = parse_tag_value(value)
        return {name.decode("ascii"): tag.decode("ascii") for name, tag in tags.items()}
    except (InvalidTagValueList, UnicodeDecodeError):
        return {}


def _verified(message: bytes, start: int, signatures: list[dict[str, str]], records: Mapping[bytes, bytes]) -> tuple[Verdict, ...]:
    bodies = _Bodies(message, start)
    return tuple(_verdict(message[:start], bodies, index, tags, records) for index, tags in enumerate(signatures))


def _verdict(header: bytes, bodies: _Bodies, index: int, tags: dict[str, str], records: Mapping[bytes, bytes]) -> Verdict:
    domain, selector, algorithm = tags.get("d", ""), tags.get("s", ""), tags.get("a", "")
    if f"{selector}._domainkey.{domain}.".encode() not in records:
        return Verdict(domain, selector, algorithm, "nokey", f"No key is published at {selector}._domainkey.{domain}.")
    try:
        verifier: Any = dkim.DKIM(header)
        prepared = verifier.verify_headerprep(index)
        sig, signed, found = prepared if prepared else ({}, [], [])
        if len(signed) > MAX_FIELDS:
            return Verdict(domain, selector, algorithm, "invalid", TOO_LARGE)
        expected = base64.b64decode(b"".join(sig[b"bh"].split()))
        if bodies.hash(sig) != expected:
            return Verdict(domain, selector, algorithm, "fail", BODY_FAILS)
        del sig[b"bh"]  # leaves only the header fields to dkimpy
        good = verifier.verify_sig(sig, signed, found[index], lambda name, timeout=5: records.get(name))
    except (dkim.DKIMException, binascii.Error, ValueError, KeyError) as error:
        return Verdict(domain, selector, algorithm, "invalid", str(error))
    if good:
        return Verdict(domain, selector, algorithm, "pass")
    return Verdict(domain, selector, algorithm, "fail", "The signature does not match the message.")


class _Bodies:
    """Hashes of one body, each computed once."""

    def __init__(self, message: bytes, start: int) -> None:
        self._message, self._start = message, start
        self._known: dict[tuple[bool, int | None, str], bytes] = {}

    def hash(self, sig: Mapping[bytes, bytes]) -> bytes:
        """The hash for a signature with these tags (6376 §3.5: a=, c=, l=)."""
        relaxed = sig.get(b"c", b"simple/simple").partition(b"/")[2].strip() == b"relaxed"
        limit = int(sig[b"l"]) if b"l" in sig else None
        algorithm = "sha1" if sig[b"a"] == b"rsa-sha1" else "sha256"
        key = relaxed, limit, algorithm
        if key not in self._known:
            self._known[key] = self._hash(*key)
        return self._known[key]

    def _hash(self, relaxed: bool, limit: int | None, algorithm: str) -> bytes:
        digest, left = hashlib.new(algorithm), limit
        for piece in canonical_body_of(self._message, self._start, relaxed=relaxed):
            digest.update(piece if left is None else piece[:left])
            left = None if left is None else max(0, left - len(piece))
        return digest.digest()
