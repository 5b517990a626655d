"""JSON to emails: every field of a send request in each of its forms, and an error that names the field that is wrong.

What bytes a message may hold (header names, content types, file names) is for mail/compose to say; who may send for policy.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import orjson

from mailsvc import policy
from mailsvc.http import problem
from mailsvc.http.problem import Problem, invalid, missing
from mailsvc.http.resources import schedule
from mailsvc.http.resources.attachment_links import Link
from mailsvc.http.strict_json import shown
from mailsvc.intake import Content, Incoming
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.compose import Attachment

TAGS_MAX = 75
TAG_PATTERN = "[A-Za-z0-9_-]{1,256}"
SLICE = 1 << 20  # characters of base64 decoded at a time, so that other threads get their turn; a multiple of 4

_FORM = "The email address needs to follow the `email@example.com` or `Name <email@example.com>` format."
_TAG = re.compile(TAG_PATTERN + r"\Z")
_WHITE = b" \t\r\n\f\v"

Object = Mapping[str, Any]


@attrs.frozen
class Rules:
    """What the shapes depend on. `natural`: times in words may be read now, since this is not the reactor thread."""

    now: datetime
    limits: policy.Limits
    ahead: timedelta
    natural: bool


def email(value: Any, rules: Rules) -> Incoming:
    """One send request. Keys that are not known are ignored: the libraries repeat ids and add their own."""
    if not isinstance(value, dict):
        raise invalid("The email must be a JSON object.")
    for field, why in _UNSUPPORTED.items():
        if not absent(value.get(field)):
            raise invalid(f"The `{field}` field is not supported. {why}")
    for field in ("from", "to", "subject"):
        if absent(value.get(field)):
            raise missing(field)
    html, text = string(value, "html"), string(value, "text")
    if not html and not text:
        raise problem.Problem(422, "missing_required_field", "Missing `html` or `text` field.")
    listed = {field: strings(value, field) for field in ("to", "cc", "bcc", "reply_to")}
    refusal = policy.recipients_refusal(listed, rules.limits)
    if refusal is not None:
        raise problem.refused(refusal)
    boxes = {field: tuple(_mailbox(item, _path(field, i, value)) for i, item in enumerate(items)) for field, items in listed.items()}
    return Incoming(
        sender=_sender(value["from"]),
        to=boxes["to"],
        cc=boxes["cc"],
        bcc=boxes["bcc"],
        reply_to=boxes["reply_to"],
        subject=string(value, "subject") or "",
        content=Content(
            html or None, text, tuple(_attachment(a, f"attachments[{i}]") for i, a in enumerate(objects(value, "attachments")))
        ),
        headers=_headers(value),
        tags=_tags(value),
        scheduled_at=scheduled_at(value, rules),
        source="api",
    )


_UNSUPPORTED = {
    "template": "Send the finished `html`.",
    "topic_id": "Leave it out.",
}


def fingerprint(value: Any) -> bytes:
    """What makes two requests the same: their parsed JSON, whatever its order, spacing and the form of its attachments."""
    items = value if isinstance(value, list) else [value]
    text = orjson.dumps([_canonical(item) for item in items], default=_digest, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).digest()


def _canonical(item: Any) -> Any:
    try:
        given = objects(item, "attachments")
        found = [a if a.get("content") is None else {**a, "content": _digest(_content(a, "attachments"))} for a in given]
        return {**item, "attachments": found}
    except (Problem, AttributeError):
        return item  # one that is refused, in a batch that goes without it


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def scheduled_at(value: Object, rules: Rules) -> datetime | None:
    """When it shall go; None when that is now."""
    text = string(value, "scheduled_at")
    if not text:
        return None
    try:
        return schedule.read(text, rules.now, rules.ahead, natural=rules.natural)
    except schedule.Unreadable as wrong:
        raise invalid(f"The `scheduled_at` field {wrong}.") from None


# --- values by type -----------------------------------------------------------------------------------------------------


def absent(value: Any) -> bool:
    """Null, and what some libraries send for a field that was not set."""
    return value is None or value == "" or value == []


def string(value: Object, field: str, path: str = "") -> str | None:
    """A string or nothing; an empty one stays empty, since `text` tells the two apart."""
    found = value.get(field)
    if found is None or isinstance(found, str):
        return found
    raise invalid(f"The `{path}{field}` field must be a string.")


def strings(value: Object, field: str) -> list[str]:
    """A string, or an array of strings."""
    found = value.get(field)
    if absent(found):
        return []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list):
        raise invalid(f"The `{field}` field must be a string or an array of strings.")
    for index, item in enumerate(found):
        if not isinstance(item, str):
            raise invalid(f"The `{field}[{index}]` field must be a string.")
    return found


def objects(value: Object, field: str) -> list[Object]:
    found = value.get(field)
    if found is None:
        return []
    if not isinstance(found, list):
        raise invalid(f"The `{field}` field must be an array of objects.")
    for index, item in enumerate(found):
        if not isinstance(item, dict):
            raise invalid(f"The `{field}[{index}]` field must be an object.")
    return found


# --- fields -------------------------------------------------------------------------------------------------------------


def _path(field: str, index: int, value: Object) -> str:
    return f"{field}[{index}]" if isinstance(value.get(field), list) else field


def _sender(value: Any) -> Mailbox:
    if not isinstance(value, str):
        raise invalid("The `from` field must be a string.")
    try:
        return parse_mailbox(value)
    except AddressError as wrong:
        raise Problem(422, "invalid_from_address", f"Invalid `from` field. {_FORM} {wrong}") from None


def _mailbox(text: str, path: str) -> Mailbox:
    try:
        return parse_mailbox(text)
    except AddressError as wrong:
        raise invalid(f"Invalid `{path}` field. {_FORM} {wrong}") from None


def _headers(value: Object) -> Mapping[str, str]:
    found = value.get("headers")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid("The `headers` field must be an object of strings.")
    for name, content in found.items():
        if not isinstance(content, str):
            raise invalid(f"The `headers.{shown(name)}` field must be a string.")
    return found


def _tags(value: Object) -> tuple[tuple[str, str], ...]:
    found = objects(value, "tags")
    if len(found) > TAGS_MAX:
        raise invalid(f"The `tags` field may have at most {TAGS_MAX} tags.")
    return tuple((_tag(tag, "name", i), _tag(tag, "value", i)) for i, tag in enumerate(found))


def _tag(tag: Object, key: str, index: int) -> str:
    text = string(tag, key, f"tags[{index}].")
    if text is None:
        raise missing(f"tags[{index}].{key}")
    if not _TAG.match(text):
        raise invalid(f"The `tags[{index}].{key}` field must have 1 to 256 ASCII letters, digits, underscores or dashes.")
    return text


def _attachment(value: Object, path: str) -> Attachment:
    url = string(value, "path", f"{path}.")
    named: dict[str, Any] = {
        "filename": _first(value, path, "filename"),
        "content_type": _first(value, path, "content_type", "contentType"),
        "content_id": _first(value, path, "content_id", "inline_content_id"),
    }
    if value.get("content") is not None:
        return Attachment(content=_content(value, path), **named)
    if not url:
        raise Problem(422, "invalid_attachment", f"Attachment must have either a `content` or `path`. Look at `{path}`.")
    return Link(content=b"", url=url, place=path, **named)


def _first(value: Object, path: str, *names: str) -> str | None:
    """The first of these that is set; older libraries have their own names."""
    found = (string(value, name, f"{path}.") for name in names)
    return next((text for text in found if text), None)


def _content(value: Object, path: str) -> bytes:
    """base64, an array of byte values, or how Node writes a Buffer. `bytes` when the JSON reader made them already."""
    content = value.get("content")
    if isinstance(content, dict) and content.get("type") == "Buffer":
        content = content.get("data")
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return _base64(content, path)
    if isinstance(content, list):
        try:
            if set(map(type, content)) <= {int}:
                return bytes(content)
        except ValueError:
            pass
        raise invalid(f"The `{path}.content` field must have numbers from 0 to 255 only.")
    raise invalid(f"The `{path}.content` field must be a base64 string or an array of byte values.")


def _base64(text: str, path: str) -> bytes:
    """Decoded in slices: one call over 40 MB would keep every other thread waiting."""
    if text.isascii():
        encoded = text.encode("ascii")
        for form in (encoded, _without_spaces(encoded)):
            try:
                return b"".join(binascii.a2b_base64(slice_, strict_mode=True) for slice_ in _slices(form))
            except ValueError:
                continue
    raise invalid(f"The `{path}.content` field must be base64.")


def _without_spaces(encoded: bytes) -> bytes:
    """Without white space, and padded: both are left to the sender (4648 §3.1, §3.2)."""
    bare = b"".join(slice_.translate(None, _WHITE) for slice_ in _slices(encoded)).rstrip(b"=")
    return bare + b"=" * (-len(bare) % 4)


def _slices(octets: bytes) -> Iterator[bytes]:
    return (octets[at : at + SLICE] for at in range(0, len(octets), SLICE))
