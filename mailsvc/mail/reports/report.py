"""Splits a returned mail into the parts of a report (RFC 6522), or takes the text of any other mail.

The parts are read by dsn_reader, feedback and text_bounce. The input can be hostile: nothing here raises, and `LIMIT` bounds the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from mailsvc.mail import charset, mime, parameters
from mailsvc.mail.header import Field, parse_fields, split_message
from mailsvc.mail.html_to_text import text_of

LIMIT = 1024 * 1024  # bytes of a message that are examined; the machine-readable part precedes the returned mail
GROUPS = 1001  # of one report that are examined: the one about the message, and 1,000 recipients, as many as a mail can have
BLOCK = 64 * 1024  # bytes that are examined for each

# Types of the third part, and their non-ASCII variants in 6533 §3.
_RETURNED = ("message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers")


@attrs.frozen
class Report:
    """A returned mail. `kind`: the report-type, "" if it is not a report. `text`: for people. `status`: the machine-readable part."""

    kind: str
    fields: dict[str, str]  # of the mail itself; by name in lower case, the first of each
    text: str = attrs.field(repr=False)
    status: bytes | None = attrs.field(default=None, repr=False)
    returned: dict[str, str] = attrs.field(factory=dict, repr=False)  # the fields of the mail that the report is about
    attached: bytes = attrs.field(default=b"", repr=False)  # that mail, or the part of it that came back


def read(message: bytes) -> Report:
    """Accepts any mail. Leaves out what cannot be parsed."""
    message = message[:LIMIT]
    if b"\r\n" not in message:
        message = message.replace(b"\n", b"\r\n")
    try:
        parsed = mime.parse(message)
    except mime.MimeError:
        return Report("", {}, "")
    fields = first(parsed.fields)
    named = parameters.decode(fields.get("content-type", ""))[1]
    kind = named.get("report-type", "").lower()
    kind = "delivery-status" if kind == "global-delivery-status" else kind  # 6533 §4: the same meaning
    files = {file.content_type: file.content for file in reversed(parsed.files)}
    # Some servers send the parts of a report in a multipart/mixed.
    kind = next((each for each in (kind, *_STATUS) if any(name in files for name in _STATUS.get(each, ()))), kind)
    status = next((files[name] for name in _STATUS.get(kind, ()) if name in files), None)
    returned = next((files[name] for name in _RETURNED if name in files), b"")
    return Report(kind, fields, _text(parsed, message), status, first(parse_fields(_head(returned), strict=False)), returned)


def _text(parsed: mime.Parsed, message: bytes) -> str:
    """Returns the text for people. If there is none, because the boundaries are damaged, all that is not about the parts."""
    text = parsed.text or (text_of(parsed.html) if parsed.html else "")
    if text.strip():
        return text
    damaged = next((file.content for file in parsed.files if file.content_type.startswith("multipart/")), None)
    lines = charset.guess(message[split_message(message)[1] :] if damaged is None else damaged).splitlines()
    return "\n".join(line for line in lines if not line.lower().startswith(("content-", "boundary=")))


_STATUS = {
    "delivery-status": ("message/delivery-status", "message/global-delivery-status"),  # 3464 §2, 6533 §3
    "feedback-report": ("message/feedback-report",),  # 5965 §2
}


def first(fields: tuple[Field, ...] | list[Field]) -> dict[str, str]:
    """Returns the first field of each name, decoded."""
    found: dict[str, str] = {}
    for field in fields:
        found.setdefault(field.name.lower(), field.value)
    return found


def groups(status: bytes) -> Iterator[list[tuple[str, str]]]:
    """Yields the groups of fields of a machine-readable part in order, with names in lower case (3464 §2.1)."""
    blocks = re.split(rb"(?:\r?\n[ \t]*){2,}", status.strip(b"\r\n \t"), maxsplit=GROUPS)
    for block in blocks[:GROUPS]:
        lines = re.sub(rb"\r?\n", b"\r\n", block[:BLOCK])
        fields = [(field.name.lower(), _plain(field)) for field in parse_fields(lines, strict=False)]
        if fields:
            yield fields


def _plain(field: Field) -> str:
    """Returns the unfolded value. Encoded words are not allowed here, so they are not decoded."""
    return " ".join(charset.guess(field.raw).split())


def _head(returned: bytes) -> bytes:
    end = returned.find(b"\r\n\r\n")
    return returned if end < 0 else returned[: end + 2]
