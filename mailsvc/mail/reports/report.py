"""What came back by mail, taken apart: the parts of a multipart/report (RFC 6522), or the text of what is none.

What the parts say: dsnread, feedback, oldbounce. Hostile input is expected: nothing here raises, and time is bounded by `LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from mailsvc.mail import charset, mime, parameters
from mailsvc.mail.header import Field, parse_fields

LIMIT = 1024 * 1024  # octets of a message that are looked at; what is machine-readable stands before what is returned
GROUPS = 1000  # recipients of one report that are looked at
BLOCK = 64 * 1024  # octets of what is said of each

# What stands in the third part, and in 6533 §3 its kin beyond ASCII.
_RETURNED = ("message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers")


@attrs.frozen
class Report:
    """`kind` is the report-type, "" for a mail that is no report. `text` is what people read; `status` the machine-readable part."""

    kind: str
    fields: dict[str, str]  # of the mail itself; names in lower case, the first of each
    text: str = attrs.field(repr=False)
    status: bytes | None = attrs.field(default=None, repr=False)
    returned: dict[str, str] = attrs.field(factory=dict, repr=False)  # the fields of the mail that it is about


def read(message: bytes) -> Report:
    """Any mail. What cannot be understood is left out."""
    message = message[:LIMIT]
    if b"\r\n" not in message:
        message = message.replace(b"\n", b"\r\n")
    try:
        parsed = mime.parse(message)
    except mime.MimeError:
        return Report("", {}, "")
    fields = first(parsed.fields)
    kind, named = parameters.decode(fields.get("content-type", ""))
    report = named.get("report-type", "").lower() if kind == "multipart/report" else ""
    report = "delivery-status" if report == "global-delivery-status" else report  # 6533 §4: one with the same meaning
    files = {file.content_type: file.content for file in reversed(parsed.files)}
    status = next((files[name] for name in _STATUS.get(report, ()) if name in files), None)
    returned = next((files[name] for name in _RETURNED if name in files), b"")
    return Report(report, fields, parsed.text or parsed.html or "", status, first(parse_fields(_head(returned), strict=False)))


_STATUS = {
    "delivery-status": ("message/delivery-status", "message/global-delivery-status"),  # 3464 §2, 6533 §3
    "feedback-report": ("message/feedback-report",),  # 5965 §2
}


def first(fields: tuple[Field, ...] | list[Field]) -> dict[str, str]:
    """The first of each name, decoded."""
    found: dict[str, str] = {}
    for field in fields:
        found.setdefault(field.name.lower(), field.value)
    return found


def groups(status: bytes) -> Iterator[list[tuple[str, str]]]:
    """The blocks of fields of a machine-readable part, names in lower case, in order (3464 §2.1)."""
    blocks = re.split(rb"(?:\r?\n[ \t]*){2,}", status.strip(b"\r\n \t"), maxsplit=GROUPS)
    for block in blocks[:GROUPS]:
        lines = re.sub(rb"\r?\n", b"\r\n", block[:BLOCK])
        fields = [(field.name.lower(), _plain(field)) for field in parse_fields(lines, strict=False)]
        if fields:
            yield fields


def _plain(field: Field) -> str:
    """Unfolded and without comments of their own meaning: encoded words have no place there."""
    return " ".join(charset.guess(field.raw).split())


def _head(returned: bytes) -> bytes:
    end = returned.find(b"\r\n\r\n")
    return returned if end < 0 else returned[: end + 2]
