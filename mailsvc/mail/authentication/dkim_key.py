"""DKIM key records (RFC 6376 §3.6.1): what stands under a selector, compared with what should. Pure."""

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
    """Why a verifier that finds this record would not accept our signatures; `why` is a phrase."""

    fault: Fault
    why: str


def compare(text: str, expected: str) -> Wrong | None:
    """`text`, as found with its strings joined, against the record that we want. None: it serves as well."""
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
        return Wrong("revoked", "its p= tag is empty, which says that the key is revoked")
    if found.get("k", "rsa") != wanted.get("k", "rsa"):
        return Wrong("algorithm", f"its k= tag says {found.get('k', 'rsa')}, not {wanted.get('k', 'rsa')}")
    if key != right:  # byte for byte: base64 has case
        if right.startswith(key) or (len(key) < len(right) and right.endswith(key)):
            return Wrong("truncated", f"its key has {len(key)} of {len(right)} characters")
        return Wrong("other_key", "it has another key")
    hashes = [_bare(name) for name in found.get("h", "sha256").split(":")]
    if "sha256" not in hashes:
        return Wrong("hash", f"its h= tag allows {':'.join(hashes)} only, and signatures use sha256")
    services = [_bare(name) for name in found.get("s", "*").split(":")]
    if not {"*", "email"} & set(services):
        return Wrong("service", f"its s= tag is {':'.join(services)}, which is not for email")
    if "y" in [_bare(flag) for flag in found.get("t", "").split(":")]:
        return Wrong("testing", "its t= tag has y: it is only being tested, and receivers treat the mail as unsigned")
    return None  # t=s is no hindrance: signatures have no i= of another domain


def _bare(text: str) -> str:
    return _SPACE.sub("", text)
