"""The fields of `POST /emails`: what each accepts, its errors and its description; and what makes two requests the same.

To add a field, declare it in `EMAIL` and pass it on in `email`.

What a message can contain (header names, content types, file names) is up to `mail/compose`, who can send up to `policy`.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import orjson

from mailsvc.http.fields import Field, Id, OneOrMany, Record, Records, Rules, Text, TextMap, Unsupported, described
from mailsvc.http.problem import Problem, invalid
from mailsvc.http.resources import schedule
from mailsvc.http.resources.attachment_links import Link
from mailsvc.intake import Content, Incoming
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.compose import Attachment

SLICE = 1 << 20  # bytes of base64 decoded at a time, so that other threads get their turn; a multiple of 4

_FORM = "The email address needs to follow the `email@example.com` or `Name <email@example.com>` format."
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_TAG_SAYS = "must have 1 to 256 ASCII letters, digits, underscores or dashes"
_SPACE = b" \t\r\n\f\v"
_REPLACED = frozenset(("message-id", "date", "return-path"))  # we write our own; Laravel, Symfony Mailer and django-anymail pass them on
_CALENDAR = "BEGIN:VCALENDAR"  # never base64, because of the colon


@attrs.frozen
class Address(Field):
    """`someone@example.com` or `Name <someone@example.com>`. `error` is the name of the error for anything else."""

    error: str = attrs.field(default="validation_error", kw_only=True)
    blank: bool = attrs.field(default=True, kw_only=True)

    def form(self) -> dict[str, Any]:
        return {"type": "string", **({"minLength": 3} if self.required else {})}

    def read(self, value: Any, place: str, rules: Rules) -> Mailbox:
        if not isinstance(value, str):
            raise invalid(f"The `{place}` field must be a string.")
        try:
            return parse_mailbox(value)
        except AddressError as wrong:
            raise Problem(422, self.error, f"Invalid `{place}` field. {_FORM} {wrong}") from None


@attrs.frozen
class BareAddress(Address):
    """An address without a display name; one that has a name loses it."""

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        return super().read(value, place, rules).address


@attrs.frozen
class File(Field):
    """The content of an attachment: base64, an array of byte values, or how Node writes a Buffer. The JSON reader can have made `bytes`.

    Calendar files can also be sent as text, as Laravel does.
    """

    def form(self) -> dict[str, Any]:
        values = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
        buffer = {
            "title": "NodeBuffer",
            "type": "object",
            "properties": {
                "type": {"type": "string", "const": "Buffer", **described("Always `Buffer`.", "Buffer")},
                "data": {**values, **described("The bytes.", [72, 101, 108, 108, 111])},
            },
            "required": ["type", "data"],
        }
        return {"anyOf": [{"type": "string", "contentEncoding": "base64"}, values, buffer]}

    def read(self, value: Any, place: str, rules: Rules | None = None) -> bytes:
        if isinstance(value, dict) and value.get("type") == "Buffer":
            value = value.get("data")
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return _utf8(value) if value[:100].lstrip().startswith(_CALENDAR) else _base64(value, place)
        if isinstance(value, list):
            try:
                if set(map(type, value)) <= {int}:
                    return bytes(value)
            except ValueError:
                pass
            raise invalid(f"The `{place}` field must have numbers from 0 to 255 only.")
        raise invalid(f"The `{place}` field must be a base64 string or an array of byte values.")


@attrs.frozen
class Schedule(Text):
    """When to send; None when that is now."""

    example: Any = "in 1 hour"
    more: Any = attrs.field(factory=lambda: {"maxLength": schedule.LENGTH_MAX}, kw_only=True)

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        text = super().read(value, place, rules)
        try:
            return schedule.read(text, rules.now, rules.bounds.ahead, natural=rules.natural)
        except schedule.Unreadable as wrong:
            raise invalid(f"The `{place}` field {wrong}.") from None


def _attachment(given: dict[str, Any], place: str) -> Attachment:
    named: dict[str, Any] = {
        "filename": given["filename"],
        "content_type": given["content_type"] or given["contentType"],
        "content_id": given["content_id"] or given["inline_content_id"],
    }
    if given["content"] or (given["content"] is not None and not given["path"]):  # empty beside a path: not set
        return Attachment(content=given["content"], **named)
    if not given["path"]:
        raise Problem(422, "invalid_attachment", f"Attachment must have either a `content` or `path`. Check `{place}`.")
    return Link(content=b"", url=given["path"], place=place, **named)


@attrs.frozen
class _Alias(Text):
    """Another name of a field, which older client libraries use. The description leaves it out."""

    def form(self) -> dict[str, Any]:
        return {}


_FILE = File("The content: base64, or an array of byte values. A calendar (`BEGIN:VCALENDAR…`) can also be plain text.", "SGVsbG8=")
ATTACHMENT = Record(
    title="SendAttachment",
    fields={
        "content": _FILE,
        "path": Text(
            "Instead of `content`: an https URL. The file is fetched when the email is accepted.", "https://example.com/invoice.pdf"
        ),
        "filename": Text("The name of the file.", "invoice.pdf"),
        "content_type": Text("The media type. By default it follows from the file name.", "application/pdf"),
        "contentType": _Alias(),
        "content_id": Text('Embeds the file in the HTML: `<img src="cid:logo">`.', "logo"),
        "inline_content_id": _Alias(),
    },
    example={"content": "SGVsbG8=", "filename": "hello.txt"},
    make=_attachment,
)
TAG = Record(
    title="SendTag",
    fields={
        "name": Text("The name.", "category", required=True, blank=False, pattern=_TAG, says=_TAG_SAYS),
        "value": Text("The value.", "welcome", required=True, blank=False, pattern=_TAG, says=_TAG_SAYS),
    },
    make=lambda given, _: (given["name"], given["value"]),
)


def _addresses(about: str, example: str, noun: str = "recipients", *, required: bool = False) -> OneOrMany:
    return OneOrMany(about, [example], item=Address(), most=lambda bounds: bounds.email.recipients_per_field, noun=noun, required=required)


EMAIL = Record(
    title="SendEmail",
    noun="email",
    fields={
        "from": Address(
            "The sender: `someone@example.com` or `Name <someone@example.com>`, from one of your verified domains.",
            "Acme <hello@example.com>",
            error="invalid_from_address",
            required=True,
        ),
        "to": _addresses("The recipients: one address or an array.", "someone@example.net", required=True),
        "cc": _addresses("Recipients of a copy.", "cc@example.net"),
        "bcc": _addresses("Recipients of a copy that the others don't see.", "bcc@example.net"),
        "reply_to": _addresses("Where replies go.", "support@example.com", "addresses"),
        "subject": Text("The subject.", "Your order has shipped", required=True),
        "html": Text("The HTML version. At least one of `html` and `text` is required.", "<p>It is on its way.</p>"),
        "text": Text('The plain text version. By default it is made from `html`; `""` leaves it out.', "It is on its way.", blank=False),
        "headers": TextMap(
            "Additional header fields of the message. Values are strings or numbers. `Message-ID`, `Date` and `Return-Path` are ignored.",
            {"X-Entity-Ref-ID": "order-1234"},
        ),
        "attachments": Records("Files to attach or to embed.", item=ATTACHMENT),
        "tags": Records("Names and values that events repeat, so that you can group emails.", item=TAG, most=75),
        "scheduled_at": Schedule("When to send: ISO 8601, or English such as `in 1 hour` or `tomorrow at 9am`. By default now."),
        "template": Unsupported("Send the finished `html`."),
        "topic_id": Id(
            "Only recipients who are subscribed to this topic get the email; a single one gets a link to unsubscribe.", blank=True
        ),
    },
)
BATCH = Records(
    "The emails. With `x-batch-validation: strict`, one invalid email rejects all of them.",
    item=attrs.evolve(EMAIL, noun="request body"),
    least=1,
    most=lambda bounds: bounds.batch,
)
_FIXED = Unsupported("Only the `scheduled_at` of an email can be changed. Cancel it and send another one.")
RESCHEDULE = Record(
    title="RescheduleEmail",
    fields={
        **{name: _FIXED for name in EMAIL.fields if name != "template"},
        "scheduled_at": Schedule("When to send: ISO 8601, or English such as `in 1 hour` or `tomorrow at 9am`.", required=True),
    },
)


def email(value: Any, rules: Rules, client: str | None = None, trace: str | None = None) -> Incoming:
    """One email to send. `client`: the address that it came from; `trace`: the traceparent of the request."""
    given = EMAIL.read(value, "", rules)
    if not given["html"] and not given["text"]:
        raise Problem(422, "missing_required_field", "Missing `html` or `text` field.")
    return Incoming(
        sender=given["from"],
        to=given["to"],
        cc=given["cc"] or (),
        bcc=given["bcc"] or (),
        reply_to=given["reply_to"] or (),
        subject=given["subject"],
        content=Content(given["html"], given["text"], given["attachments"] or ()),
        headers=_headers(given["headers"] or {}, given["from"]),
        tags=given["tags"] or (),
        scheduled_at=given["scheduled_at"],
        source="api",
        topic_id=given["topic_id"],
        client=client,
        trace=trace,
    )


def _headers(given: Mapping[str, str], sender: Mailbox) -> Mapping[str, str]:
    headers = {name: _unfolded(value) for name, value in given.items() if name.lower() not in _REPLACED}
    return {name: value for name, value in headers.items() if name.lower() != "sender" or not _repeats(value, sender)}


def _repeats(value: str, sender: Mailbox) -> bool:
    """Whether a Sender header only repeats `from` (5322 §3.6.2), as that of Symfony Mailer does if an application sets a sender."""
    try:
        return parse_mailbox(value).address.lower() == sender.address.lower()
    except AddressError:
        return False


def _unfolded(value: str) -> str:
    """The value of a header field on one line (5322 §2.2.3). The Laravel drivers fold long ones."""
    return value.replace("\r\n ", " ").replace("\r\n\t", "\t") if "\n" in value else value


# What makes two requests the same


def fingerprint(value: Any) -> bytes:
    """Equal for requests that mean the same: for their parsed JSON, whatever its order, spacing and the form of its attachments."""
    items = value if isinstance(value, list) else [value]
    text = orjson.dumps([_canonical(item) for item in items], default=_digest, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).digest()


def _canonical(item: Any) -> Any:
    try:
        files = item.get("attachments") or []
        found = [a if a.get("content") is None else {**a, "content": _digest(_FILE.read(a["content"], "attachments"))} for a in files]
        return {**item, "attachments": found}
    except (Problem, AttributeError, TypeError):
        return item  # invalid, in a batch that goes without it


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _utf8(text: str) -> bytes:
    return b"".join(text[at : at + SLICE].encode() for at in range(0, len(text), SLICE))  # in slices, as in _base64


def _base64(text: str, place: str) -> bytes:
    """Decoded in slices: one call over 40 MB would keep every other thread waiting."""
    if text.isascii():
        encoded = text.encode("ascii")
        for form in (_as_sent, _padded):
            try:
                return b"".join(binascii.a2b_base64(part, strict_mode=True) for part in _slices(form(encoded)))
            except ValueError:
                continue
    raise invalid(f"The `{place}` field must be base64.")


def _as_sent(encoded: bytes) -> bytes:
    return encoded


def _padded(encoded: bytes) -> bytes:
    """Without white space, and padded: senders can do either (4648 §3.1, §3.2)."""
    bare = b"".join(part.translate(None, _SPACE) for part in _slices(encoded)).rstrip(b"=")
    return bare + b"=" * (-len(bare) % 4)


def _slices(encoded: bytes) -> Iterator[bytes]:
    return (encoded[at : at + SLICE] for at in range(0, len(encoded), SLICE))
