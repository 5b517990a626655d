"""Tag lists (RFC 6376 §3.2): the syntax of DKIM keys and, almost, of DMARC policies. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class TagError(ValueError):
    """The list of tags is invalid. The text is a phrase that says why."""


def parse(text: str) -> dict[str, str]:
    """Returns the tags in their order. White space around names and values is ignored."""
    tags: dict[str, str] = {}
    for part in text.rstrip("; \t\r\n").split(";"):
        if not is_tag(part):
            raise TagError(f"{part.strip()[:40]!r} is not a tag")
        name, _, value = part.partition("=")
        name = name.strip()
        if name in tags:
            raise TagError(f"the tag {name}= is repeated")  # 6376 §3.2: invalid as a whole
        tags[name] = value.strip()
    return tags


def is_tag(part: str) -> bool:
    """Whether a part between semicolons is a name with a value, which can be empty."""
    name, equals, _ = part.partition("=")
    return bool(equals and _NAME.fullmatch(name.strip()))


def with_destination(text: str, uri: str) -> str:
    """The record, otherwise unchanged, with one more destination for reports in rua. An empty one adds nothing."""
    fields = text.rstrip("; \t").split(";")
    for number, field in enumerate(fields if uri else ()):
        if field.partition("=")[0].strip() == "rua":
            fields[number] = f"{field.rstrip()},{uri}"
            return ";".join(fields)
    return ";".join([*fields, f" rua={uri}"] if uri else fields)
