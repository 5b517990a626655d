"""DKIM key records (RFC 6376 §3.6.1): compares the record found in DNS with the expected one. Pure."""

from __future__ import annotations

import re
from typing import Literal

import attrs

from mailsvc.mail.authentication import tags
from mailsvc.mail.authentication.tags import TagError

Fault = Literal["unreadable", "quotes", "version", "revoked", "algorithm", "truncated", "other_key", "hash", "service", "testing"]

_SPACE = re.compile(r"\s+")


@attrs.frozen
class Wrong:
    """Why a verifier would reject our signatures because of this record. `why` is a phrase."""

    fault: Fault
    why: str


def compare(text: str, expected: str) -> Wrong | None:
    """Compares `text`, a record with its strings joined, with the expected record. Returns None if signatures can be verified with it."""
    if "\\" in text or '"' in text:
        return Wrong("quotes", "it has quotation marks or backslashes within its value")
    try:
        found, wanted = tags.parse(text), tags.parse(expected)
    except TagError as error:
        return Wrong("unreadable", str(error))
    version = found.get("v", "DKIM1")
    if version != "DKIM1" or ("v" in found and next(iter(found)) != "v"):
        return Wrong("version", "its v= tag is not DKIM1, or not the first one")
    if "p" not in found:
        return Wrong("unreadable", "it has no p= tag")
    key, right = _bare(found["p"]), _bare(wanted["p"])
    if not key:
        return Wrong("revoked", "its p= tag is empty, which means that the key is revoked")
    if found.get("k", "rsa") != wanted.get("k", "rsa"):
        return Wrong("algorithm", f"its k= tag says {found.get('k', 'rsa')}, not {wanted.get('k', 'rsa')}")
    if key != right:  # base64 is case-sensitive
        if right.startswith(key) or (len(key) < len(right) and right.endswith(key)):
            return Wrong("truncated", f"its key has {len(key)} of {len(right)} characters")
        return Wrong("other_key", "it has a different key")
    hashes = [_bare(name) for name in found.get("h", "sha256").split(":")]
    if "sha256" not in hashes:
        return Wrong("hash", f"its h= tag only allows {':'.join(hashes)}, but signatures use sha256")
    services = [_bare(name) for name in found.get("s", "*").split(":")]
    if not {"*", "email"} & set(services):
        return Wrong("service", f"its s= tag is {':'.join(services)}, which is not for email")
    if "y" in [_bare(flag) for flag in found.get("t", "").split(":")]:
        return Wrong("testing", "its t= tag contains y (testing), so receivers treat the mail as unsigned")
    return None  # t=s is fine: signatures have no i= with a different domain


def _bare(text: str) -> str:
    return _SPACE.sub("", text)
