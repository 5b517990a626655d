"""Whether the DKIM signatures of a received mail hold, by the public keys that we publish (or would publish)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import dkim
from dkim.util import InvalidTagValueList, parse_tag_value

from mailsvc.store.sandbox import Verdict

MOST_SIGNATURES = 10

# The TXT record of `selector._domainkey.domain`, None when there is none: (domain, selector).
Published = Callable[[str, str], Awaitable[str | None]]
# Runs a function off the reactor's thread.
Offload = Callable[[Callable[[], tuple[Verdict, ...]]], Awaitable[tuple[Verdict, ...]]]


async def verdicts(message: bytes, published: Published, offload: Offload) -> tuple[Verdict, ...]:
    """A verdict for each signature, from the top; none for an unsigned mail."""
    records: dict[bytes, bytes] = {}
    fields = signature_fields(message)
    for tags in fields:
        domain, selector = tags.get("d", ""), tags.get("s", "")
        record = await published(domain, selector) if domain and selector else None
        if record is not None:
            records[f"{selector}._domainkey.{domain}.".encode()] = record.encode("ascii")
    if not fields:
        return ()
    return await offload(lambda: tuple(_verdict(message, index, tags, records) for index, tags in enumerate(fields)))


def signature_fields(message: bytes) -> list[dict[str, str]]:
    """The tags of the DKIM-Signature fields; no tags for one that cannot be read."""
    try:
        headers, _ = dkim.rfc822_parse(message)
    except dkim.MessageFormatError:
        return []
    values = [value for name, value in headers if name.lower() == b"dkim-signature"]
    return [_tags(value) for value in values[:MOST_SIGNATURES]]


def _tags(value: bytes) -> dict[str, str]:
    try:
        tags: Mapping[bytes, bytes] = parse_tag_value(value)
        return {name.decode("ascii"): tag.decode("ascii") for name, tag in tags.items()}
    except (InvalidTagValueList, UnicodeDecodeError):
        return {}


def _verdict(message: bytes, index: int, tags: dict[str, str], records: Mapping[bytes, bytes]) -> Verdict:
    domain, selector, algorithm = tags.get("d", ""), tags.get("s", ""), tags.get("a", "")
    if f"{selector}._domainkey.{domain}.".encode() not in records:
        return Verdict(domain, selector, algorithm, "nokey", f"No key is published as {selector}._domainkey.{domain}.")
    try:
        good = dkim.DKIM(message).verify(idx=index, dnsfunc=lambda name, timeout=5: records.get(name))
    except (dkim.DKIMException, ValueError, KeyError) as error:
        return Verdict(domain, selector, algorithm, "invalid", str(error))
    if good:
        return Verdict(domain, selector, algorithm, "pass")
    return Verdict(domain, selector, algorithm, "fail", "The signature does not match the message.")
