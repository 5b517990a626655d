"""DMARC policy records (RFC 9989 §4.7) and the names where receivers look for them (§4.10). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

from mailsvc.mail.authentication import tags
from mailsvc.mail.authentication.tags import TagError

QUERIES = 8  # §4.10
Policy = Literal["none", "quarantine", "reject"]
_POLICIES: tuple[Policy, ...] = ("none", "quarantine", "reject")


@attrs.frozen
class Record:
    """A policy. `reports`: where they are sent (rua). `testing`: t=y. `psd`: y, n or u. `notes`: what is wrong but tolerated."""

    policy: Policy
    subdomains: Policy | None
    absent: Policy | None  # np=, for names that do not exist
    testing: bool
    psd: str
    strict_dkim: bool
    strict_spf: bool
    reports: tuple[str, ...]
    notes: tuple[str, ...] = ()


def is_dmarc(text: str) -> bool:
    """Whether the first tag is the version, which is case-sensitive (§4.7)."""
    name, _, value = text.partition(";")[0].partition("=")
    return name.strip() == "v" and value.strip() == "DMARC1"


def parse(text: str) -> Record | None:
    """Parses a record that `is_dmarc` accepts. Returns None if receivers would ignore it. Unknown tags and syntax errors are ignored."""
    parts = [part for part in text.split(";") if part.strip()]
    broken = [part.strip() for part in parts if not tags.is_tag(part)]  # §4.8: ignored
    try:
        found = tags.parse(";".join(filter(tags.is_tag, parts)))
    except TagError:
        return None
    if broken and "p" not in found:
        return None
    reports = tuple(uri.strip() for uri in found.get("rua", "").split(",") if uri.strip())
    notes = [f"{part[:40]!r} is not a tag, so receivers ignore it" for part in broken]
    notes += [f"{name}= is no longer a DMARC tag" for name in ("pct", "rf", "ri") if name in found]
    policy = _policy(found.get("p"))
    if policy is None:
        if "p" in found and not reports:
            return None  # §4.7: an invalid p= is treated as none only if reports are requested
        notes.append("p= is missing or not one of none, quarantine, reject; it is treated as none")
        policy = "none"
    return Record(
        policy,
        _policy(found.get("sp")),
        _policy(found.get("np")),
        found.get("t", "n").lower() == "y",
        found.get("psd", "u").lower() if found.get("psd", "u").lower() in ("y", "n") else "u",
        found.get("adkim", "r").lower() == "s",
        found.get("aspf", "r").lower() == "s",
        reports,
        tuple(notes),
    )


def only(texts: Sequence[str]) -> Record | None:
    """Returns the policy at a name. Several policies cancel each other out (§4.10)."""
    found = [text for text in texts if is_dmarc(text)]
    return parse(found[0]) if len(found) == 1 else None


def walk(domain: str) -> Iterator[str]:
    """Yields the domains whose _dmarc name is queried, in order: at most eight. From a longer name, it skips to seven labels (§4.10)."""
    labels = domain.split(".")
    yield domain
    rest = labels[1:] if len(labels) < QUERIES else labels[-(QUERIES - 1) :]
    while rest:
        yield ".".join(rest)
        rest = rest[1:]


def _policy(text: str | None) -> Policy | None:
    lowered = (text or "").lower()
    return next((policy for policy in _POLICIES if policy == lowered), None)
