"""Tag lists (RFC 6376 §3.2), the form of DKIM keys and, nearly, of DMARC policies. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class TagError(ValueError):
    """Not a list of tags; the text is a phrase."""


def parse(text: str) -> dict[str, str]:
    """Tags in their order. White space around names and values does not count."""
    tags: dict[str, str] = {}
    for part in text.rstrip("; \t\r\n").split(";"):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise TagError(f"{part.strip()[:40]!r} is no tag")
        if name in tags:
            raise TagError(f"the tag {name}= is there twice")  # 6376 §3.2: invalid as a whole
        tags[name] = value.strip()
    return tags
