"""The record with which a domain asks for TLS reports (RFC 8460 §3). Pure. The reports: mail/reports/tls_report."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

MOST = 5  # destinations of a record that are used
_LONGEST = 2000  # characters of one


def is_record(text: str) -> bool:
    """Whether it begins with the version."""
    return text.startswith("v=TLSRPTv1") and text[10:].lstrip(" \t")[:1] in (";", "")


def only(texts: Sequence[str]) -> str | None:
    """The record at a name. If there is not exactly one, no reports are wanted (8460 §3)."""
    found = [text for text in texts if is_record(text)]
    return found[0] if len(found) == 1 else None


def destinations(record: str) -> list[str]:
    """The URIs in rua, `mailto:` and `https:` only; at most `MOST`."""
    for field in record.split(";")[1:]:
        key, equals, value = field.partition("=")
        if key.strip(" \t") == "rua" and equals:
            uris = [uri.strip(" \t") for uri in value.split(",", MOST)[:MOST]]
            return [uri for uri in uris if uri.lower().startswith(("mailto:", "https:")) and len(uri) <= _LONGEST]
    return []


def mailbox(uri: str) -> str | None:
    """The address of a `mailto:` URI (6068 §2), without header fields. None if it is another one."""
    return unquote(uri[7:].partition("?")[0]) if uri.lower().startswith("mailto:") else None
